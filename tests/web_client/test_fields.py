"""Fields of the page that the loaded model honors, and what the page sends for them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.web_client.conftest import OVER, QUICK, READY, speech_token, until

KEY = "a-key-of-enough-characters"
SPOKEN = ("do_sample", "temperature", "top_k", "top_p", "repetition_penalty", "repetition_window", "min_new_tokens")
PREDICTED = ("predictor_do_sample", "predictor_temperature", "predictor_top_k", "predictor_top_p")
SHOWN = "document.querySelector('#sampling').childElementCount > 0"


@pytest.fixture
def lexicon_server(serve: Callable, tmp_path: Path) -> str:
    url = serve(QUICK, auth__api_keys=f"me:{KEY}", voices__folder=str(tmp_path))
    for name in ("cities", "products", "names", "units", "spare"):
        entries = json.dumps({"entries": {"NGINX": "engine x"}}).encode()
        order = urllib.request.Request(f"{url}/v1/lexicons/{name}", entries, {"X-API-Key": KEY}, method="PUT")
        urllib.request.urlopen(order).close()
    return url


def spoken_settings(page: Any, text: str = "Hello there.") -> dict[str, Any]:
    """Speak, and return the settings that the page sent."""
    page.click("#log-clear") if page.locator("#log-clear").is_visible() else page.click("#log summary")
    page.fill("#text", text)
    page.click("#speak")
    until(page, OVER)
    line = page.locator("#log-lines li", has_text='response.create"').last.inner_text()
    return json.loads(line.split("→ ")[1])["settings"]


def use_key(page: Any, key: str) -> None:
    page.click("#access summary")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    until(page, READY)


def names(page: Any) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('#sampling input, #sampling select')].map(({name}) => name)")


def test_fields_of_the_form_reach_the_server(open_page: Callable, serve: Callable) -> None:
    page = open_page(serve(QUICK))
    until(page, SHOWN)
    assert sorted(names(page)) == sorted(SPOKEN + PREDICTED)
    plain = spoken_settings(page)
    assert not {"instruct", "sampling", "markup", "lexicons"} & set(plain)
    page.get_by_label("Style").fill(" Whisper. ")
    page.click("#advanced summary")
    page.get_by_label("Temperature", exact=True).fill("0.7")
    page.get_by_label("Top k", exact=True).fill("40")
    page.get_by_label("Predictor sampling").select_option("off")
    page.get_by_label("SSML tags").check()
    sent = spoken_settings(page, 'One.<break time="20ms"/> Two.')
    assert sent["instruct"] == "Whisper."
    assert sent["sampling"] == {"temperature": 0.7, "top_k": 40, "predictor_do_sample": False}
    assert (sent["markup"], "speakers" in sent) == ("ssml", False)
    page.locator(".reply .state", has_text="heard").first.wait_for()
    page.get_by_role("button", name="Dialogue").click()
    assert [field.input_value() for field in page.locator("#speakers select").all()] == ["ada", "ben"]
    page.locator("#speakers select").nth(0).select_option("ben")
    sent = spoken_settings(page, "Ann: Hello.\nBob: Hello, Ann.")
    assert sent["speakers"] == {"Ann": "ben", "Bob": "ben"}


def test_model_without_instructions_has_no_field_for_them(open_page: Callable, serve: Callable) -> None:
    limits = {"top_k": [1, 50], "temperature": [0.5, 1.0]}
    fields = {"takes_instruct": False, "refused_fields": PREDICTED, "sampling_limits": limits}
    page = open_page(serve(QUICK | {"info": fields}))
    until(page, SHOWN)
    assert sorted(names(page)) == sorted(SPOKEN)
    assert not page.locator("#instruct").is_visible()
    page.evaluate("document.querySelector('#instruct').value = 'of a former model'")
    assert "instruct" not in spoken_settings(page)
    top_k = page.locator("#sampling-top_k")
    assert (top_k.get_attribute("min"), top_k.get_attribute("max")) == ("1", "50")


@pytest.mark.slow
def test_voice_design_asks_for_a_description(open_page: Callable, serve: Callable) -> None:
    page = open_page(serve(QUICK | {"info": {"task": "voice_design", "voices": []}}))
    until(page, SHOWN)
    assert page.locator("#dialogue").is_hidden()
    page.get_by_label("Description of the voice").fill("A calm old man.")
    sent = spoken_settings(page)
    assert (sent["instruct"], "voice" in sent) == ("A calm old man.", False)


@pytest.mark.slow
def test_speakers_are_named_added_and_removed(open_page: Callable, serve: Callable) -> None:
    page = open_page(serve(QUICK))
    until(page, SHOWN)
    page.fill("#text", "Dr. Ann Lee: One.\nBob: Two: three.\n  Bob: Four.\nNot a label:five")
    page.click("#dialogue summary")
    labels = page.locator("#speakers input")
    labels.nth(1).wait_for()
    assert [label.input_value() for label in labels.all()] == ["Dr. Ann Lee", "Bob"]
    assert page.inner_text("#dialogue-count") == "(2 speakers)"
    page.click("#add-speaker")
    page.keyboard.type("Bob")
    page.click("#dialogue summary")
    page.click("#speak")
    until(page, "document.activeElement.validationMessage === 'Another speaker has this label.'")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("a:b")
    page.click("#speak")
    until(page, "document.activeElement.validity.patternMismatch")
    assert page.locator(".reply").count() == 0
    page.get_by_role("button", name="Remove a:b").click()
    until(page, "document.activeElement.id === 'add-speaker'")
    page.get_by_role("button", name="Remove Dr. Ann Lee").click()
    assert list(spoken_settings(page)["speakers"]) == ["Bob"]
    for _ in range(15):
        page.click("#add-speaker")
    assert page.is_disabled("#add-speaker")
    page.get_by_role("button", name="Numbers").click()
    assert page.locator("#speakers li").count() == 0
    assert "speakers" not in spoken_settings(page)


@pytest.mark.slow
def test_value_out_of_range_opens_its_folded_field(open_page: Callable, serve: Callable) -> None:
    page = open_page(serve(QUICK))
    until(page, SHOWN)
    page.click("#advanced summary")
    page.fill("#sampling-temperature", "7")
    page.click("#advanced summary")
    page.click("#speak")
    until(page, "document.activeElement.name === 'temperature'")
    assert page.locator("#sampling-temperature").is_visible()
    assert page.locator(".reply").count() == 0


def test_four_lexicons_of_the_key_can_be_selected(open_page: Callable, lexicon_server: str) -> None:
    page = open_page(lexicon_server)
    page.expected = ["WebSocket connection", "401"]
    use_key(page, KEY)
    page.click("#advanced summary")
    for name in ("products", "cities", "names", "units"):
        page.get_by_label(name).check()
    assert page.get_by_label("spare").is_disabled()
    assert spoken_settings(page)["lexicons"] == ["cities", "names", "products", "units"]
    page.get_by_label("units").uncheck()
    assert page.get_by_label("spare").is_enabled()


def test_token_shows_that_lexicons_need_a_key(open_page: Callable, lexicon_server: str) -> None:
    page = open_page(lexicon_server)
    page.expected = ["WebSocket connection", "401"]
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    use_key(page, speech_token(lexicon_server, KEY))
    until(page, SHOWN)
    page.click("#advanced summary")
    page.locator("#lexicons-note", has_text="need an API key").wait_for()
    assert not any(address.endswith("/v1/lexicons") for address in requested)
