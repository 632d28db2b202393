"""The view of the conversation with the agent: a language model and a recognizer on a socket, a microphone that plays
a file of speech."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessions.audio.resampler import Resampler
from sessions.audio.wav import wav_file
from tests.realtime.agent.stub_backend import ScriptedAnswer, StubBackend, stub_backend_thread
from tests.realtime.server_process import server
from tests.web_client.conftest import QUICK, READY, SOUND_ALLOWED, http, launch, samples, speech_token, until

KEY = "a-key-of-enough-characters"
# Longer than the audio that a server sends ahead.
LONG = ScriptedAnswer("This is a long answer that goes on and on and on. " * 15, speed=10)
# Sent completely while it begins to play.
SENT_AHEAD = ScriptedAnswer("This is a long answer that goes on and on. " * 3, speed=10)
CONNECTED = "document.querySelector('#talk-status').textContent === 'Ready.'"
# Marks each detected speech in the audio thread, before the page receives the event.
MARK_SPEECH = """window.WebSocket = class extends WebSocket {
    constructor(...order) {
        super(...order);
        this.addEventListener("message", ({ data }) => String(data).includes("speech_started") && window.tap?.mark());
    }
};"""
IDLE = "document.querySelector('#talk-interrupt').getAttribute('aria-disabled') === 'true'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Its microphone plays 1.5 s of speech and 2.5 s of silence, again and again."""
    from training.flite import SAMPLE_RATE_HZ, available, synthesize

    if not available():
        pytest.skip("flite is not installed")
    speech = np.asarray(synthesize("Wait a moment, please.", "slt").pcm, np.float32) / 32768
    pcm = Resampler(SAMPLE_RATE_HZ, 48_000).push(speech)
    spoken = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    spoken.write_bytes(wav_file(np.pad(pcm, (0, 120_000)), 48_000))
    device = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with launch(SOUND_ALLOWED, *device, f"--use-file-for-fake-audio-capture={spoken}") as browser:
        yield browser


@pytest.fixture(scope="module")
def started(folder: Path) -> Iterator[tuple[StubBackend, str]]:
    with stub_backend_thread() as stub, server(QUICK, listen__page=str(folder), **flags(stub)) as running:
        yield stub, http(running)


@pytest.fixture
def backend(started: tuple[StubBackend, str]) -> StubBackend:
    stub, _ = started
    for script in (stub.answers, stub.transcripts, stub.chats, stub.recordings):
        script.clear()
    return stub


@pytest.fixture
def url(started: tuple[StubBackend, str], backend: StubBackend) -> str:
    return started[1]


def flags(backend: StubBackend) -> dict[str, Any]:
    return {"agent__llm_url": backend.url, "agent__stt_url": backend.url, "agent__llm_model": "m"}


def open_talk(open_page: Callable, url: str, script: str = "", **options: Any) -> Any:
    """A tab that is ready for a turn, with the messages of its conversation."""
    page = open_page("about:blank", **options)
    page.add_init_script(script)
    page.sent = []

    def listen(socket: Any) -> None:
        if "/v1/realtime" in socket.url:
            socket.on("framesent", lambda data: page.sent.append(data))

    page.on("websocket", listen)
    page.goto(f"{url}/#talk")
    until(page, READY)
    until(page, CONNECTED)
    return page


@pytest.fixture
def page(open_page: Callable, url: str) -> Any:
    return open_talk(open_page, url)


def ask(page: Any, text: str) -> Any:
    """Send a typed turn; return the card of its answer."""
    answers = page.locator(".turn[data-kind=agent]")
    before = answers.count()
    page.fill("#talk-text", text)
    page.press("#talk-text", "Enter")
    answers.nth(before).wait_for()
    return answers.nth(before)


def sent(page: Any, kind: str) -> list[dict[str, Any]]:
    return [event for event in map(json.loads, page.sent) if event["type"] == kind]


def replies(chat: dict[str, Any]) -> list[str]:
    """Return what the language model is told that it has said."""
    return [entry["content"] for entry in chat["messages"] if entry["role"] == "assistant"]


def interrupt(page: Any, how: str) -> None:
    if how == "button":
        page.click("#talk-interrupt")
    elif how == "escape":
        page.focus("#talk-text")
        page.keyboard.press("Escape")
    else:
        page.fill("#talk-text", "And now?")
        page.press("#talk-text", "Enter")


def test_typed_conversation(page: Any, backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer("Fine, thank you."), ScriptedAnswer("Good bye.")]
    answer = ask(page, "How are <b>you</b>?")
    answer.locator(".state", has_text="heard").wait_for()
    assert answer.locator(".said").inner_text() == "Fine, thank you."
    assert page.locator(".turn[data-kind=user] .said").inner_text() == "How are <b>you</b>?"
    assert answer.locator(".numbers dt").all_inner_texts() == ["first token", "first audio"]
    assert page.input_value("#talk-text") == ""
    ask(page, "Bye.").locator(".state", has_text="heard").wait_for()
    assert [entry["content"] for entry in backend.chats[1]["messages"] if entry["role"] != "system"] == [
        "How are <b>you</b>?",
        "Fine, thank you.",
        "Bye.",
    ]
    assert page.locator("#turns > li").count() == 4


@pytest.mark.parametrize("how", ["escape", *(pytest.param(how, marks=pytest.mark.slow) for how in ("button", "turn"))])
def test_interruption_truncates_history_to_what_was_played(page: Any, backend: StubBackend, how: str) -> None:
    backend.answers.append(LONG)
    answer = ask(page, "Tell me.")
    answer.locator(".heard", has_text="This is a long").wait_for()
    interrupt(page, how)
    answer.locator(".state", has_text="interrupted").wait_for()
    answer.locator(".rest").wait_for(state="attached")
    page.locator(".turn[data-heard]").wait_for()
    [truncated] = sent(page, "conversation.item.truncate")
    assert 0 < truncated["audio_end_ms"] < 10_000
    assert len(sent(page, "response.cancel")) == 1
    heard = answer.locator(".heard").inner_text()
    assert f"{truncated['audio_end_ms'] / 1000:.2f} s" in answer.locator(".cut").inner_text()
    assert LONG.text.startswith(heard)
    assert len(heard) < len(LONG.text) / 2
    if how != "turn":
        ask(page, "And now?")
    page.locator(".turn .state", has_text="heard").wait_for()
    assert replies(backend.chats[1]) == ([heard] if heard else [])
    assert page.locator(".notice").count() == 0


def test_interruption_before_the_first_word(page: Any, backend: StubBackend) -> None:
    """The response is canceled before the page has any of its audio; the next turn is answered."""
    backend.answers += [ScriptedAnswer("Never said.", stalls_at=0), ScriptedAnswer("Here I am.")]
    page.fill("#talk-text", "Tell me.")
    page.press("#talk-text", "Enter")
    # The first answer of the script belongs to the first request.
    while not backend.chats:
        page.wait_for_timeout(10)
    answer = ask(page, "Are you there?")
    page.locator(".turn .said", has_text="Here I am.").wait_for()
    page.locator(".turn .state", has_text="heard").wait_for()
    assert answer.locator(".problem").is_hidden()
    until(page, IDLE)
    assert page.locator(".notice").count() == 0


def test_failing_model_is_shown_and_next_turn_answered(page: Any, backend: StubBackend) -> None:
    backend.answers += [ScriptedAnswer(status=400), ScriptedAnswer("Fine.")]
    answer = ask(page, "How are you?")
    answer.locator(".state", has_text="failed").wait_for()
    page.locator(".notice", has_text="llm_failed").wait_for()
    assert answer.locator(".said").inner_text().startswith("Sorry")
    assert answer.locator(".problem").inner_text() != ""
    ask(page, "And now?").locator(".state", has_text="heard").wait_for()
    assert page.locator(".notice").count() == 0


@pytest.mark.slow
def test_answer_that_was_sent_completely_is_still_cut(page: Any, backend: StubBackend) -> None:
    backend.answers.append(SENT_AHEAD)
    answer = ask(page, "Tell me.")
    answer.locator(".numbers").wait_for()
    answer.locator(".heard", has_text="This is a long").wait_for()
    page.keyboard.press("Escape")
    page.locator(".turn[data-heard]").wait_for()
    assert sent(page, "response.cancel") == []
    heard = answer.locator(".heard").inner_text()
    assert len(heard) < len(SENT_AHEAD.text) / 2
    ask(page, "And now?").locator(".state", has_text="heard").wait_for()
    assert replies(backend.chats[1]) == ([heard] if heard else [])


def choose(page: Any, mode: str) -> None:
    page.locator("#talk-microphone label", has_text=mode).click()


def test_hands_free_turns_interrupt_by_voice(page: Any, backend: StubBackend) -> None:
    backend.transcripts += ["Tell me.", "Stop."]
    backend.answers += [LONG, LONG]
    choose(page, "hands-free")
    users, answers = page.locator(".turn[data-kind=user]"), page.locator(".turn[data-kind=agent]")
    users.nth(1).locator(".said", has_text="Stop.").wait_for()
    choose(page, "off")
    assert users.nth(0).locator(".said").inner_text() == "Tell me."
    first = answers.nth(0)
    first.locator(".state", has_text="interrupted").wait_for()
    until(page, "document.querySelector('.turn[data-kind=agent]').dataset.heard !== undefined")
    heard = first.locator(".heard").inner_text()
    assert LONG.text.startswith(heard)
    assert first.locator(".numbers dt").all_inner_texts() == [
        "end of speech",
        "recognition",
        "first token",
        "first audio",
    ]
    assert sent(page, "conversation.item.truncate")[0]["audio_end_ms"] > 0
    assert sent(page, "response.cancel") == [], "the server has done that"
    page.click("#talk-interrupt")
    until(page, IDLE)
    ask(page, "Go on.")
    while len(backend.chats) < 3:
        page.wait_for_timeout(10)
    assert replies(backend.chats[2])[:1] == [heard]
    assert page.locator(".notice").count() == 0


@pytest.mark.slow
def test_voice_ends_audio_within_30_ms_at_right_position(open_page: Callable, url: str, backend: StubBackend) -> None:
    """In audio time, from when the audio thread is informed of the event."""
    backend.answers += [LONG, ScriptedAnswer("", calls=[{"id": "1", "name": "stop", "arguments": "{}"}])]
    page = open_talk(open_page, url, MARK_SPEECH)
    page.evaluate("async () => { window.tap = await (await import('/harness.js')).tapped(voicewire); }")
    choose(page, "hands-free")
    page.locator(".turn .said", has_text="stop({})").wait_for()
    choose(page, "off")
    until(page, IDLE)
    tap = page.evaluate("tap.take()")
    assert tap["whole"]
    sounding = np.flatnonzero(np.abs(samples(tap["pcm"])) > 1e-6)
    late_ms = 1000 * (tap["frame"] + sounding[-1] - tap["marked"]) / 48_000
    assert late_ms < 30
    [truncated] = sent(page, "conversation.item.truncate")
    assert truncated["audio_end_ms"] == pytest.approx(len(sounding) / 48, abs=40)


@pytest.mark.parametrize("how", ["pointer", pytest.param("key", marks=pytest.mark.slow)])
def test_button_is_held_for_a_turn(page: Any, backend: StubBackend, how: str) -> None:
    backend.transcripts.append("How are you?")
    backend.answers += [LONG, ScriptedAnswer("Fine.")]
    answer = ask(page, "Tell me.")
    answer.locator(".heard", has_text="This is a long").wait_for()
    choose(page, "hold to talk")
    until(page, "document.querySelector('#talk-status').textContent.startsWith('Audio leaves')")
    assert sent(page, "input_audio_buffer.append") == []
    hold, release = hands(page, how)
    hold()
    answer.locator(".state", has_text="interrupted").wait_for()
    assert page.get_attribute("#talk-hold", "aria-pressed") == "true"
    while len(sent(page, "input_audio_buffer.append")) < 50:
        page.wait_for_timeout(20)
    release()
    page.locator(".turn .said", has_text="How are you?").wait_for()
    page.locator(".turn .said", has_text="Fine.").wait_for()
    num_appended = len(sent(page, "input_audio_buffer.append"))
    with wave.open(BytesIO(backend.recordings[0])) as recording:
        assert recording.getnframes() / recording.getframerate() == pytest.approx(0.02 * num_appended, abs=0.03)
        assert np.abs(np.frombuffer(recording.readframes(1_000_000), "<i2")).max() > 1_000
    hold()
    release()
    until(page, "document.querySelector('#talk-hold').ariaPressed === 'false'")
    assert len(sent(page, "input_audio_buffer.commit")) == 1, "too short for a turn"
    page.click("#to-say")
    until(page, "document.querySelector('#talk-microphone input').checked")


def hands(page: Any, how: str) -> tuple[Callable[[], None], Callable[[], None]]:
    if how == "key":
        page.focus("#talk-hold")
        return (lambda: page.keyboard.down("Space"), lambda: page.keyboard.up("Space"))
    page.hover("#talk-hold")
    return page.mouse.down, page.mouse.up


@pytest.mark.slow
def test_microphone_that_does_not_open_is_off_again(page: Any) -> None:
    page.evaluate("""() => void (navigator.mediaDevices.getUserMedia = () =>
        Promise.reject(new DOMException('no', 'NotAllowedError')))""")
    choose(page, "hands-free")
    page.locator(".notice", has_text="the browser does not allow the microphone").wait_for()
    assert page.is_checked("#talk-microphone input[value=off]")
    assert page.locator("#talk-hold").is_hidden()


@pytest.mark.slow
def test_function_call_is_shown(page: Any, backend: StubBackend) -> None:
    call = {"id": "1", "name": "order", "arguments": '{"tea": "green"}'}
    backend.answers.append(ScriptedAnswer("", calls=[call]))
    answer = ask(page, "Order a tea.")
    answer.locator(".said", has_text='order({"tea": "green"})').wait_for()
    answer.locator(".state", has_text="heard").wait_for()


@pytest.mark.slow
def test_without_agent_there_is_no_conversation(open_page: Callable, serve: Callable) -> None:
    page = open_page(f"{serve(QUICK)}/#talk")
    page.locator("#talk-note", has_text="no agent").wait_for()
    assert page.locator("#to-talk").is_hidden()
    assert page.is_disabled("#talk-send")


@pytest.mark.slow
def test_lost_connection_is_shown_and_another_begun(open_page: Callable, folder: Path, backend: StubBackend) -> None:
    settings = {"listen__page": str(folder)} | flags(backend)
    with server(QUICK, **settings) as first:
        port = int(first.url.rpartition(":")[2])
        page = open_talk(open_page, http(first))
        page.expected += ["WebSocket connection", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET"]
        ask(page, "One.").locator(".state", has_text="heard").wait_for()
    page.locator(".notice", has_text="The conversation has ended").wait_for()
    with server(QUICK, listen__port=port, **settings):
        until(page, READY)
        until(page, CONNECTED)
        assert page.locator(".notice").count() == 0
        ask(page, "Two.").locator(".state", has_text="heard").wait_for()
        assert replies(backend.chats[1]) == []
        assert page.locator("#turns > li").count() == 5
        page.click("#talk-restart")
        until(page, CONNECTED)
        assert page.locator("#turns > li").count() == 0
        page.context.close()


@pytest.mark.slow
def test_token_of_a_key_opens_the_conversation(open_page: Callable, serve: Callable, backend: StubBackend) -> None:
    url = serve(QUICK, auth__api_keys=f"me:{KEY}", **flags(backend))
    page = open_page(f"{url}/#talk")
    page.expected = ["WebSocket connection", "401"]
    page.locator(".notice", has_text="asks for an API key").wait_for()
    page.click("#access summary")
    page.fill("#key", speech_token(url, KEY))
    page.keyboard.press("Enter")
    until(page, CONNECTED)
    ask(page, "Hello.").locator(".state", has_text="heard").wait_for()


@pytest.mark.slow
def test_conversation_on_phone_has_names_and_no_scroll(open_page: Callable, url: str, backend: StubBackend) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = open_talk(open_page, url, viewport={"width": 360, "height": 700}, color_scheme=scheme)
        backend.answers.append(ScriptedAnswer("Donau" * 40 + "."))
        ask(page, "x" * 200)
        page.locator(".turn .said", has_text="Donau").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        box = page.locator("#talk-interrupt").bounding_box()
        assert box["y"] + box["height"] <= 700
        assert box["height"] >= 44
        grounds.append(page.evaluate("getComputedStyle(document.querySelector('.turn')).backgroundColor"))
        nameless = page.evaluate("""[...document.querySelectorAll('#view-talk :is(button, input, select, textarea)')]
            .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
            .map((element) => element.outerHTML)""")
        assert nameless == []
    assert grounds[0] != grounds[1]
