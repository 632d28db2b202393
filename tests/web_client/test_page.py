"""The page as its user meets it: buttons, keys, what it says when something is wrong."""

from __future__ import annotations

import json
import wave

import numpy as np
import pytest

from tests.fakes.resetting_proxy import resetting_proxy
from tests.realtime.server_process import server
from tests.web_client.conftest import LATEST, OVER, QUICK, READY, SOUNDING, http, samples, speech_token, until

RATE = 48_000
KEY = "a-key-of-enough-characters"
LONG = "One two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen."


@pytest.fixture
def page(open_page, quick):
    page = open_page(quick)
    until(page, READY)
    return page


def say(page, text: str) -> None:
    page.fill("#text", text)
    page.click("#speak")


def test_page_speaks_text_and_shows_heard_text(page):
    assert page.inner_text("#connection") == "connected · fake"
    assert page.locator("#voice option").all_inner_texts() == ["ada", "ben"]
    page.select_option("#voice", "ben")
    page.fill("#seed", "7")
    page.click("#log summary")
    say(page, "Hello there.")
    until(page, OVER)
    card = page.locator(".reply")
    card.locator(".state", has_text="heard").wait_for()
    assert card.locator(".heard").inner_text() == "Hello there."
    numbers = card.locator(".numbers").inner_text().split("\n")
    assert int(numbers[numbers.index("packets") + 1]) > 20
    assert page.locator("#announcer").inner_text() == "Reply 1 was heard to its end"
    page.locator("#log-lines", has_text="response.done").wait_for()
    created = json.loads(page.locator("#log-lines li", has_text='response.create"').inner_text().split("→ ")[1])
    assert (created["text"], created["end"]) == ("Hello there.", True)
    assert (created["settings"]["voice"], created["settings"]["seed"]) == ("ben", 7)


def test_where_there_is_no_voice_to_choose_none_is_asked_for(page):
    """A model may speak only like recordings; the server then tells what is missing."""
    page.wait_for_load_state("networkidle")  # the list is filled once more with the model's fields
    page.evaluate("document.querySelector('#voice').replaceChildren()")
    page.click("#log summary")
    say(page, "Hello there.")
    until(page, OVER)
    created = json.loads(page.locator("#log-lines li", has_text='response.create"').inner_text().split("→ ")[1])
    assert "voice" not in created["settings"]


@pytest.mark.parametrize("how", ["space", *(pytest.param(how, marks=pytest.mark.slow) for how in ("button", "escape"))])
def test_an_interruption_shows_what_was_heard(page, how):
    say(page, LONG)
    until(page, f"{LATEST}?.played_ms > 700")
    if how == "button":
        page.click("#interrupt")
    elif how == "space":
        page.keyboard.press("Space")
    else:
        page.focus("#text")
        page.keyboard.press("Escape")
    until(page, OVER)
    card = page.locator(".reply")
    assert page.locator(".reply").count() == 1, "the space bar did not speak again"
    card.locator(".cut").wait_for()
    heard, rest = card.locator(".heard").inner_text(), card.locator(".rest").inner_text()
    assert heard.startswith("One two")
    assert rest.strip().endswith("seventeen.")
    assert page.evaluate(f"{LATEST}.heard.text + {LATEST}.heard.remaining") == LONG
    assert f"{page.evaluate(f'{LATEST}.heard.played_ms') / 1000:.2f} s" in card.locator(".cut").inner_text()
    assert "Not heard:" in page.inner_text("#announcer")


def test_what_was_sent_and_not_yet_heard_can_still_be_cut(page):
    """All of it has come, so the server answers by what was heard of it."""
    say(page, "A short text.")
    until(page, f"{LATEST}?.status === 'completed' && {LATEST}.played_ms > 0")
    page.keyboard.press("Space")
    until(page, f"{LATEST}.heard !== null")
    page.locator(".reply .state", has_text="interrupted").wait_for()


@pytest.mark.slow
def test_space_types_a_space_where_text_is_typed(page):
    say(page, LONG)
    until(page, SOUNDING)
    page.locator("#text").press("End")
    page.keyboard.press("Space")
    assert page.input_value("#text") == f"{LONG} "
    assert page.evaluate(f"{LATEST}.interrupted") is False


def test_stop_click_ends_audio_within_30_ms_at_right_position(page):
    """In audio time, from when the audio thread knows of the click: how busy the machine is does not count."""
    page.evaluate("async () => { window.tap = await (await import('/harness.js')).tapped(voicewire); }")
    say(page, LONG)
    until(page, f"{LATEST}?.played_ms > 300 && !{LATEST}.over")
    page.evaluate("""document.querySelector("#interrupt").addEventListener("click", () => tap.mark(),
        { capture: true })""")
    page.click("#interrupt")
    until(page, f"{LATEST}.heard !== null")
    page.wait_for_timeout(100)
    tap = page.evaluate("tap.take()")
    assert tap["whole"]
    sounding = np.flatnonzero(np.abs(samples(tap["pcm"])) > 1e-6)
    assert 1000 * (tap["frame"] + sounding[-1] - tap["marked"]) / RATE < 30
    truth_ms = 1000 * len(sounding) / RATE  # a busy machine's underruns are silent
    assert page.evaluate(f"{LATEST}.heard.played_ms") == pytest.approx(truth_ms, abs=40)


@pytest.mark.slow
def test_text_arrives_like_tokens(page):
    page.check("input[value=tokens]", force=True)
    page.select_option("#pauses", "none")
    page.fill("#rate", "100")
    say(page, "Words come one by one, then end.")
    until(page, OVER)
    assert page.evaluate(f"{LATEST}.text") == "Words come one by one, then end."
    page.click("#log summary")
    page.locator("#log-lines", has_text="text.end").wait_for()
    assert page.locator("#log-lines li", has_text="text.append").count() > 8


def test_concurrent_replies_play_separately(page):
    page.select_option("#copies", "4")
    say(page, LONG)
    until(page, "voicewire.active.filter((response) => response.played_ms > 0).length === 4")
    page.locator(".reply button", has_text="Interrupt").first.click()
    until(page, "[...voicewire.responses.values()].filter(({status}) => status === 'cancelled').length === 1")
    assert page.evaluate("voicewire.active.length") == 3


@pytest.mark.slow
def test_what_was_heard_is_saved(page, tmp_path):
    say(page, LONG)
    until(page, f"{LATEST}?.played_ms > 400")
    page.keyboard.press("Escape")
    until(page, OVER)
    with page.expect_download() as download:
        page.click(".reply button:has-text('Save')")
    download.value.save_as(tmp_path / "heard.wav")
    with wave.open(str(tmp_path / "heard.wav")) as file:
        assert file.getframerate() == RATE
        pcm = np.frombuffer(file.readframes(RATE), "<i2") / 32_767
        heard_ms = 1000 * file.getnframes() / RATE
    assert heard_ms == pytest.approx(page.evaluate(f"{LATEST}.heard.played_ms"), abs=1)
    assert np.sqrt(np.mean(pcm[2_000:] ** 2)) == pytest.approx(0.3 / np.sqrt(2), rel=0.05)


def test_two_tabs_speak_at_once(open_page, quick):
    tabs = [open_page(quick) for _ in range(2)]
    for tab in tabs:
        until(tab, READY)
        say(tab, LONG)
    for tab in tabs:
        until(tab, f"{LATEST}?.played_ms > 300")
        assert tab.evaluate("voicewire.active.length") == 1
    assert tabs[0].evaluate("voicewire.info.session_id") != tabs[1].evaluate("voicewire.info.session_id")
    tabs[0].keyboard.press("Escape")
    until(tabs[0], OVER)
    assert tabs[1].evaluate(f"{LATEST}.status") != "cancelled"


def test_it_comes_back_after_the_server_did(open_page, folder):
    with server(QUICK, listen__page=str(folder), limits__resume_grace_s=1) as first:
        port = int(first.url.rpartition(":")[2])
        page = open_page(http(first))
        page.expected = ["WebSocket connection", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET"]
        until(page, READY)
        say(page, "Goodbye.")
        until(page, SOUNDING)
    page.locator(".notice", has_text="There is no connection").wait_for()
    until(page, OVER)
    assert page.evaluate(f"{LATEST}.status") in ("failed", "completed")
    with server(QUICK, listen__page=str(folder), listen__port=port):
        until(page, READY)
        assert page.locator(".notice").count() == 0
        say(page, "Here again.")
        until(page, f"{OVER} && {LATEST}.text === 'Here again.'")
        assert page.evaluate(f"{LATEST}.status") == "completed"
        page.context.close()


def test_reply_of_a_new_session_outlives_the_grace_of_the_lost_one(open_page, folder):
    grace_s, lead_s = 4, 2
    text = "word " * int((grace_s + lead_s) * 1000 / QUICK["ms_per_char"] / len("word "))
    with server(QUICK, listen__page=str(folder), limits__resume_grace_s=grace_s) as first:
        port = int(first.url.rpartition(":")[2])
        page = open_page(http(first))
        page.expected = ["WebSocket connection", "ERR_CONNECTION_REFUSED", "ERR_CONNECTION_RESET"]
        until(page, READY)
    page.locator(".notice", has_text="There is no connection").wait_for()
    with server(QUICK, listen__page=str(folder), listen__port=port):
        until(page, READY)
        say(page, text)
        until(page, OVER)
        assert page.evaluate(f"{LATEST}.status") == "completed"
        page.context.close()


def test_reply_goes_on_at_another_gateway_after_a_kill(open_page, folder):
    """The servers share nothing. The page keeps its address, as behind a door."""
    script = {"ms_per_char": 40.0, "real_time_factor": 0.1, "draws_codes": True}
    with server(script, listen__page=str(folder)) as first, server(script, listen__page=str(folder)) as second:
        ports = [int(one.url.rpartition(":")[2]) for one in (first, second)]
        with resetting_proxy(ports[0]) as proxy:
            page = open_page(f"http://127.0.0.1:{proxy.port}")
            page.expected = ["WebSocket connection"]
            until(page, READY)
            page.click("#log summary")
            say(page, LONG)
            until(page, f"{LATEST}?.played_ms > 500")
            page.evaluate(f"window.session = voicewire.info.session_id, window.reply = {LATEST}")
            proxy.upstream_port = ports[1]
            first.process.kill()
            until(page, OVER)
            assert page.evaluate("voicewire.info.session_id !== session")
            assert page.evaluate(f"{LATEST} === reply")
            assert page.evaluate("reply.status") == "completed"
            assert page.evaluate("reply.statistics.audio_ms") == pytest.approx(40 * len(LONG), abs=80)
            page.locator("#log-lines", has_text='"resync"').wait_for()
            page.locator(".reply .heard", has_text=LONG).wait_for()
            page.context.close()


@pytest.mark.slow
def test_reply_too_long_for_a_resync_is_lost_alone(open_page, folder):
    """The gateway that is left takes short messages only. The other reply goes on there."""
    script = {"ms_per_char": 40.0, "real_time_factor": 0.01, "draws_codes": True}
    with (
        server(script, listen__page=str(folder)) as first,
        server(script, listen__page=str(folder), limits__max_message_bytes=2_048) as second,
    ):
        ports = [int(one.url.rpartition(":")[2]) for one in (first, second)]
        with resetting_proxy(ports[0]) as proxy:
            page = open_page(f"http://127.0.0.1:{proxy.port}")
            page.expected = ["WebSocket connection"]
            until(page, READY)
            page.evaluate(
                """async ([long, short]) => {
              const settings = { pace: "burst" };
              window.long = await voicewire.speak({ text: long, settings });
              window.short = await voicewire.speak({ text: short, settings });
              window.errors = [];
              voicewire.on("error", (event) => errors.push(event));
            }""",
                [LONG * 4, "One two three. "],
            )
            until(page, "long.statistics.audio_ms > 10000 && short.statistics.audio_ms > 200")
            proxy.upstream_port = ports[1]
            first.process.kill()
            until(page, "long.status === 'failed'")
            page.evaluate("short.push('Four five.'); short.end();")
            until(page, "short.status !== 'speaking'")
            assert page.evaluate("[short.status, short.heard?.text ?? short.text]") == [
                "completed",
                "One two three. Four five.",
            ]
            assert page.evaluate("errors") == []
            page.context.close()


def test_page_key_is_requested_and_never_stored_or_in_url(open_page, serve):
    url = serve(QUICK, auth__api_keys=f"me:{KEY}")
    page = open_page(url)
    page.expected = ["WebSocket connection", "401"]
    page.locator(".notice", has_text="asks for an API key").wait_for()
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.on("websocket", lambda socket: requested.append(socket.url))
    page.click(".notice button")
    page.fill("#key", "wrong-key-of-some-length")
    page.click("#use-key")
    page.locator(".notice", has_text="asks for an API key").wait_for()
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    until(page, READY)
    assert len(requested) > 1
    assert not any(KEY in address for address in [*requested, page.url])
    assert page.evaluate("JSON.stringify([{...sessionStorage}, {...localStorage}, document.cookie])") == '[{},{},""]'
    assert KEY not in page.inner_text("body")
    page.check("#keep-key")
    page.click("#use-key")
    until(page, READY)
    page.reload()
    until(page, READY)


@pytest.mark.slow
def test_markup_in_a_text_stays_text(page):
    say(page, "<img src=x onerror=alert(1)> & <b>bold</b>")
    until(page, OVER)
    assert page.locator(".said img, .said b").count() == 0
    assert page.locator(".said").inner_text().strip() == "<img src=x onerror=alert(1)> & <b>bold</b>"


@pytest.mark.slow
def test_a_refused_response_says_why(page):
    page.evaluate("document.querySelector('#voice').append(new Option('nobody', 'nobody', true, true))")
    say(page, "Hello.")
    page.locator(".problem", has_text="unknown_voice").wait_for()
    until(page, OVER)


@pytest.mark.slow
def test_the_wire_is_copied(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.click("#log summary")
    page.click("#log-copy")
    page.locator("#log-copy", has_text="Copied").wait_for()
    assert '"type":"session.created"' in page.evaluate("navigator.clipboard.readText()")


@pytest.mark.slow
def test_every_control_has_a_name_and_colours_follow_the_system(open_page, quick):
    grounds = []
    for scheme in ("light", "dark"):
        page = open_page(quick, color_scheme=scheme)
        until(page, READY)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
        page.click("#theme")
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] == grounds[3] != grounds[1] == grounds[2]
    nameless = page.evaluate("""[...document.querySelectorAll('button, input, select, textarea, canvas, summary')]
        .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
        .map((element) => element.outerHTML)""")
    assert nameless == []


def test_page_on_phone_has_no_horizontal_scroll(open_page, quick):
    page = open_page(quick, viewport={"width": 360, "height": 700}, has_touch=True)
    until(page, READY)
    page.tap("#speak")
    until(page, SOUNDING)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = page.locator("#interrupt").bounding_box()
    assert box["y"] + box["height"] <= 700
    assert box["height"] >= 44
    page.tap("#interrupt")
    until(page, OVER)


def test_page_over_plain_http_speaks_and_warns(open_page, serve):
    url = serve(QUICK, auth__api_keys=f"me:{KEY}").replace("127.0.0.1", "tts.example")
    page = open_page(url)
    page.expected = ["WebSocket connection", "401"]
    page.locator(".notice", has_text="plain http").wait_for()
    assert page.evaluate("[isSecureContext, typeof AudioDecoder, 'audioWorklet' in AudioContext.prototype]") == [
        False,
        "undefined",
        False,
    ]
    page.click("#access summary")
    page.fill("#key", speech_token(url.replace("tts.example", "127.0.0.1"), KEY))
    page.keyboard.press("Enter")
    until(page, READY)
    say(page, "Hello there.")
    until(page, OVER)
    assert page.evaluate(f"{LATEST}.status") == "completed"
    assert page.evaluate(f"{LATEST}.played_ms - {LATEST}.statistics.audio_ms") == pytest.approx(0, abs=1)
    assert page.evaluate(f"{LATEST}.played_ms") > 400
    page.locator("#path", has_text="scheduled buffers").wait_for()
    say(page, LONG)
    until(page, f"{LATEST}?.played_ms > 300 && {LATEST}.text !== 'Hello there.'")
    page.click("#interrupt")
    until(page, f"{LATEST}.heard !== null")
    assert page.evaluate(f"{LATEST}.heard.played_ms") > 300
    assert page.evaluate(f"{LATEST}.heard.text.length") < len(LONG)
