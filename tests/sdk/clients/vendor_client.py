"""The vendors' own Python packages speak through this server: ``vendor_client.py SERVICE HTTP_URL MODE`` prints what
came as JSON. ``SSL_CERT_FILE`` names the certificate when the address is ``https``. Runs in an environment of its own.
"""

from __future__ import annotations

import base64
import itertools
import json
import struct
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator

from client_turns import KEY, LONG, TURN_TIMEOUT_S, TURNS, check_pause, decoded, is_enough, keep_cut, played

RATE = 24_000


def deltas(text: str) -> Iterator[str]:
    for word in text.split(" "):
        yield word + " "


def elevenlabs(url: str, mode: str) -> list[dict[str, object]]:
    from elevenlabs.client import ElevenLabs

    client = ElevenLabs(api_key=KEY, base_url=url)
    if url.startswith("http:"):
        client.text_to_speech._ws_base_url = url.replace("http", "ws", 1)
    speech = client.text_to_speech
    match mode:
        case "realtime":
            return [
                played(
                    text,
                    b"".join(
                        speech.convert_realtime("zoe", text=deltas(text), output_format="pcm_24000", model_id="x")
                    ),
                    RATE,
                )
                for text in TURNS
            ]
        case "realtime_mp3":
            data = [
                b"".join(speech.convert_realtime("zoe", text=deltas(text), output_format="mp3_44100_128", model_id="x"))
                for text in TURNS
            ]
            return [played(text, *decoded(each)) for text, each in zip(TURNS, data, strict=True)]
        case "stream":
            return [played(text, *decoded(b"".join(speech.stream("zoe", text=text)))) for text in TURNS]
        case "convert":
            return [
                played(text, b"".join(speech.convert("zoe", text=text, output_format="pcm_24000")), RATE)
                for text in TURNS
            ]
        case "timestamps":
            return [
                timestamped(text, speech.stream_with_timestamps("zoe", text=text, output_format="pcm_24000"))
                for text in TURNS
            ]
        case "timestamps_whole":
            convert = speech.convert_with_timestamps
            return [timestamped(text, [convert("zoe", text=text, output_format="pcm_24000")]) for text in TURNS]
        case "dictionaries":
            locators = [elevenlabs_dictionary(client)]
            form = {"output_format": "pcm_24000", "pronunciation_dictionary_locators": locators}
            plain = [speech.convert("zoe", text=TURNS[0], output_format="pcm_24000")]
            streams = [
                *plain,
                speech.convert("zoe", text=TURNS[0], **form),
                speech.stream("zoe", text=TURNS[0], **form),
            ]
            data = [b"".join(stream) for stream in streams]
            assert len(data[0]) < len(data[1]), "the alias is longer"
            return [played(TURNS[0], each, RATE) for each in data]
        case "dialogue":
            return elevenlabs_dialogue(client)
        case "voices":
            convert = speech.convert
            return [
                played(text, b"".join(convert(voice, text=text, output_format="pcm_24000")), RATE)
                for text, voice in zip(TURNS, elevenlabs_voices(client), strict=False)
            ]
    raise ValueError(mode)


def elevenlabs_dialogue(client: object) -> list[dict[str, object]]:
    """A dialogue of two voices, whole and streamed. Tags are not spoken, and each line names its voice."""
    from elevenlabs import DialogueInput

    spoken = zip(("zoe", "max"), TURNS, strict=True)
    lines = [DialogueInput(text=f"[cheerful] {text}", voice_id=voice) for voice, text in spoken]
    form = {"inputs": lines, "output_format": "pcm_24000"}
    whole = client.text_to_dialogue.convert_with_timestamps(**form)
    streamed = list(client.text_to_dialogue.stream_with_timestamps(**form))
    for answers in ([whole], streamed):
        segments = [segment for answer in answers for segment in answer.voice_segments]
        found = [key for key, _ in itertools.groupby(map(voice_of, segments))]
        assert found == [(0, "zoe"), (1, "max")], segments
    return [timestamped(" ".join(TURNS), answers) for answers in ([whole], streamed)]


def voice_of(segment: object) -> tuple[int, str]:
    return segment.dialogue_input_index, segment.voice_id


def elevenlabs_dictionary(client: object) -> object:
    """A locator of a dictionary that was made, changed and read, each answer checked against the package's own type."""
    from elevenlabs import PronunciationDictionaryVersionLocator

    dictionaries = client.pronunciation_dictionaries
    rule = {"type": "alias", "string_to_replace": "Hello", "alias": "Goodbye to you"}
    made = dictionaries.create_from_rules(name="sdk", rules=[rule])
    added = dictionaries.rules.add(made.id, rules=[rule | {"string_to_replace": "turn"}])
    removed = dictionaries.rules.remove(made.id, rule_strings=["turn"])
    file = dictionaries.create_from_file(name="file", file=("names.pls", "".join(pls(made, dictionaries)).encode()))
    shown = dictionaries.get(made.id)
    answers = [made, added, removed, file, shown, dictionaries.list(page_size=1)]
    for answer in answers:
        type(answer).model_validate(answer.model_dump(mode="json", by_alias=True))
    assert (added.version_rules_num, file.version_rules_num) == (2, 1), answers
    assert made.version_id == removed.version_id == shown.latest_version_id, answers
    assert [one.string_to_replace for one in shown.rules] == ["Hello"], shown
    return PronunciationDictionaryVersionLocator(pronunciation_dictionary_id=made.id, version_id=made.version_id)


def pls(made: object, dictionaries: object) -> Iterator[str]:
    for piece in dictionaries.download(made.id, made.version_id):
        yield piece.decode()


def elevenlabs_voices(client: object) -> list[str]:
    """All voices, by pages of one, each checked against the package's own type, which it does not do by itself."""
    found, token = [], None
    while True:
        page = client.voices.search(page_size=1, next_page_token=token, include_total_count=True)
        type(page).model_validate(page.model_dump(mode="json", by_alias=True))
        found += [voice.voice_id for voice in page.voices]
        if not page.has_more:
            break
        token = page.next_page_token
    assert len(found) == page.total_count >= len(TURNS), found
    assert [voice.voice_id for voice in client.voices.search(search=found[-1]).voices] == found[-1:]
    return found


def timestamped(text: str, chunks: Iterable[object]) -> dict[str, object]:
    pcm, words, word, start = b"", [], "", None
    for chunk in chunks:
        pcm += base64.b64decode(chunk.audio_base_64 or "")
        for character, at in zip(
            chunk.alignment.characters if chunk.alignment else (),
            chunk.alignment.character_start_times_seconds if chunk.alignment else (),
            strict=True,
        ):
            if character == " ":
                words.append((word, start))
                word, start = "", None
            else:
                word, start = word + character, at if start is None else start
    return played(text, pcm, RATE, words)


def cartesia(url: str, mode: str) -> list[dict[str, object]]:
    from cartesia import Cartesia

    client = Cartesia(api_key=KEY, base_url=url, websocket_base_url=url.replace("http", "ws", 1))
    form = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE}
    common = {"model_id": "sonic-3", "voice": {"mode": "id", "id": "zoe"}, "output_format": form}
    match mode:
        case "bytes":
            return [
                played(text, b"".join(client.tts.generate(transcript=text, **common).iter_bytes()), RATE)
                for text in TURNS
            ]
        case "voices":
            generate = client.tts.generate
            return [
                played(text, b"".join(generate(transcript=text, **common | {"voice": voice}).iter_bytes()), RATE)
                for text, voice in zip(TURNS, cartesia_voices(client), strict=False)
            ]
        case "tags":
            tagged = TURNS[0].replace("? ", '? <break time="1s"/> '), f'<speed ratio="0.6"/>{TURNS[0]}'
            plain, paused, slow = (
                b"".join(client.tts.generate(transcript=text, **common).iter_bytes()) for text in (TURNS[0], *tagged)
            )
            check_pause(paused, RATE)
            assert len(slow) > 1.3 * len(plain), "slower speech is longer"
            return [played(TURNS[0], paused, RATE)]
        case "sse":
            # A stream that is not read to its end is closed by a garbage collection. Within the next request that
            # waits for a lock which the request itself holds.
            return [of_cartesia(text, [*client.tts.generate_sse(transcript=text, **common)]) for text in TURNS]
        case "float":
            form = form | {"encoding": "pcm_f32le", "sample_rate": 44_100}
            common = common | {"output_format": form}
            data = [b"".join(client.tts.generate(transcript=text, **common).iter_bytes()) for text in TURNS]
            return [played(text, as_s16(each), 44_100) for text, each in zip(TURNS, data, strict=True)]
    with client.tts.websocket_connect() as connection:
        if mode == "contexts":
            return two_contexts(connection, common)
        if mode == "cancel":
            context = connection.context(**common)
            context.push(LONG)
            context.no_more_inputs()
            keep_beginning(context.receive())
            context.cancel()
        turns = []
        for number, text in enumerate(TURNS):
            name = f"turn-{number}"
            context = connection.context(name, **common, add_timestamps=True)
            for delta in deltas(text):
                context.push(delta)
            if mode == "flush":
                context.push("", flush=True)
            context.no_more_inputs()
            turns.append(of_cartesia(text, of_context(name, context.receive())))
        return turns


def cartesia_voices(client: object) -> list[dict[str, str]]:
    """All voices, by pages of one, each checked against the package's own type, which it does not do by itself."""
    found = []
    for voice in client.voices.list(limit=1):
        type(voice).model_validate(voice.model_dump(mode="json"))
        found.append(voice.id)
    assert len(found) == len(set(found)) >= len(TURNS), found
    assert [voice.id for voice in client.voices.list(q=found[-1])] == found[-1:]
    return [{"mode": "id", "id": name} for name in found]


def of_context(name: str, events: Iterable[object]) -> Iterator[object]:
    """What is under way of a context when it is cancelled, the package hands to the next that receives."""
    return (event for event in events if getattr(event, "context_id", name) == name)


def keep_beginning(events: Iterable[object]) -> None:
    """Enough of it to interrupt the turn."""
    pcm = b""
    for event in events:
        pcm += base64.b64decode(event.data) if event.type == "chunk" else b""
        if is_enough(pcm, RATE):
            break
    keep_cut(pcm, RATE)


def two_contexts(connection: object, common: dict[str, object]) -> list[dict[str, object]]:
    """Fed by turns, read one after the other."""
    contexts = [connection.context(**common, add_timestamps=True) for _ in TURNS]
    for pair in itertools.zip_longest(*map(deltas, TURNS)):
        for context, delta in zip(contexts, pair, strict=True):
            if delta:
                context.push(delta)
    for context in contexts:
        context.no_more_inputs()
    return [of_cartesia(text, context.receive()) for text, context in zip(TURNS, contexts, strict=True)]


def as_s16(data: bytes) -> bytes:
    samples = struct.unpack(f"<{len(data) // 4}f", data)
    return array("h", (round(max(-1.0, min(1.0, sample)) * 32_767) for sample in samples)).tobytes()


def of_cartesia(text: str, events: Iterable[object]) -> dict[str, object]:
    pcm, words = b"", []
    for event in events:
        if event.type == "chunk":
            pcm += base64.b64decode(event.data)
        elif event.type == "timestamps":
            times = event.word_timestamps
            words += list(zip(times.words, times.start, strict=True))
        elif event.type == "error":
            raise RuntimeError(str(event))
        elif event.type == "done":
            return played(text, pcm, RATE, words)
    return played(text, pcm, RATE, words)


def deepgram(url: str, mode: str) -> list[dict[str, object]]:
    from deepgram import DeepgramClient
    from deepgram.environment import DeepgramClientEnvironment

    socket = url.replace("http", "ws", 1)
    environment = DeepgramClientEnvironment(base=url, production=socket, agent=socket, agent_rest=url)
    client = DeepgramClient(api_key=KEY, environment=environment)
    if mode == "http":
        speak = client.speak.v1.audio.generate
        return [
            played(text, b"".join(speak(text=text, encoding="linear16", container="none", sample_rate=RATE)), RATE)
            for text in TURNS
        ]
    if mode == "pauses":
        form = {"encoding": "linear16", "container": "none", "sample_rate": RATE}
        spelled = TURNS[0].replace("nice", '\\{"word": "nice", "pronounce": "naɪs"\\}')
        plain, paused, other = (
            b"".join(client.speak.v1.audio.generate(text=text, **form))
            for text in (TURNS[0], TURNS[0].replace("? ", "? \\{pause:1s\\} "), spelled)
        )
        check_pause(paused, RATE)
        assert len(other) < 1.3 * len(plain), "the form is not spoken"
        return [played(TURNS[0], each, RATE) for each in (paused, other)]
    return deepgram_v2(client, mode) if mode.startswith("v2") else deepgram_v1(client, mode)


def deepgram_v1(client: object, mode: str) -> list[dict[str, object]]:
    from deepgram.speak.v1.types import SpeakV1Text

    with client.speak.v1.connect(model="aura-2-asteria-en", encoding="linear16", sample_rate=RATE) as connection:
        line = Line(connection)
        if mode == "clear":
            connection.send_text(SpeakV1Text(text=LONG))
            connection.send_flush()
            line.wait_for(lambda: is_enough(line.pcm, RATE))
            connection.send_clear()
            line.wait_for(lambda: "Cleared" in line.kinds)
            keep_cut(line.pcm, RATE)
        turns = []
        for text in TURNS:
            line.reset()
            for delta in deltas(text):
                connection.send_text(SpeakV1Text(text=delta))
            connection.send_flush()
            line.wait_for(lambda: "Flushed" in line.kinds)
            turns.append(played(text, line.pcm, RATE))
        connection.send_close()
        line.join()
        return turns


def deepgram_v2(client: object, mode: str) -> list[dict[str, object]]:
    from deepgram.speak.v2.types import SpeakV2Interrupt, SpeakV2InterruptPlaybackOffset, SpeakV2Speak

    with client.speak.v2.connect(model="flux-heather-en", encoding="linear16", sample_rate=RATE) as connection:
        line = Line(connection)
        if mode == "v2_interrupt":
            connection.send_speak(SpeakV2Speak(text=LONG))
            connection.send_flush()
            line.wait_for(lambda: len(line.pcm) > 4 * RATE and is_enough(line.pcm, RATE))
            connection.send_interrupt(
                SpeakV2Interrupt(playback_offset=SpeakV2InterruptPlaybackOffset(type="time_ms", value=1_500))
            )
            line.wait_for(lambda: "SpeechInterrupted" in line.kinds)
            keep_cut(line.pcm, RATE)
            said = line.messages[-1]
            assert said.audio_played_ms == 1_500, said
            assert said.text_spoken, said
            assert said.text_remaining, said
            assert LONG.startswith(said.text_spoken), said
        turns = []
        for text in TURNS:
            line.reset()
            for delta in deltas(text):
                connection.send_speak(SpeakV2Speak(text=delta))
            connection.send_flush()
            line.wait_for(lambda: "SpeechMetadata" in line.kinds)
            turns.append(played(text, line.pcm, RATE))
        connection.send_close()
        line.join()
        return turns


class Line:
    """What comes on a socket of Deepgram's package, read in a thread."""

    def __init__(self, connection: object) -> None:
        from deepgram.core.events import EventType

        self.reset()
        self.faults: list[object] = []
        connection.on(EventType.MESSAGE, self._take)
        connection.on(EventType.ERROR, self.faults.append)
        self._thread = threading.Thread(target=connection.start_listening, daemon=True)
        self._thread.start()

    def reset(self) -> None:
        self.pcm, self.messages = b"", []

    @property
    def kinds(self) -> list[str]:
        return [getattr(message, "type", "") for message in self.messages]

    def wait_for(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + TURN_TIMEOUT_S
        while not condition():
            if time.monotonic() > deadline or self.faults:
                raise TimeoutError(f"waited in vain: {self.kinds} {self.faults}")
            time.sleep(0.01)

    def join(self) -> None:
        self._thread.join(TURN_TIMEOUT_S)

    def _take(self, message: object) -> None:
        if isinstance(message, bytes):
            self.pcm += message
        else:
            self.messages.append(message)


def main() -> None:
    name, url, mode = sys.argv[1:4]
    turns = {"elevenlabs": elevenlabs, "cartesia": cartesia, "deepgram": deepgram}[name](url, mode)
    print(json.dumps({"turns": turns, "errors": []}))


if __name__ == "__main__":
    main()
