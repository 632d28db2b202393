"""The view of voices, with a microphone that plays a file."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sessions.audio.wav import wav_file
from tests.sessions.audio.signals import tone
from tests.web_client.conftest import QUICK, READY, SOUND_ALLOWED, launch, speech_token, until

KEY = "a-key-of-enough-characters"
EMBEDDING_SIZE = 8
CLONING = {"model": "a fake base", "task": "base", "can_clone": True, "can_encode": True}
SCRIPT = QUICK | {"info": CLONING | {"embedding_size": EMBEDDING_SIZE, "num_codebooks": 4, "codebook_size": 2_048}}
LISTED = "document.querySelector('#voice-list').childElementCount > 0"
# The fake engine's embedding of a recording: its bytes, as floats at this rate.
BYTES_PER_S = 4 * 24_000


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    spoken = tmp_path_factory.mktemp("microphone") / "spoken.wav"
    spoken.write_bytes(wav_file(tone(4.0, 48_000), 48_000))
    device = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
    with launch(SOUND_ALLOWED, *device, f"--use-file-for-fake-audio-capture={spoken}") as browser:
        yield browser


@pytest.fixture
def url(serve: Callable, tmp_path: Path) -> str:
    return serve(SCRIPT, auth__api_keys=f"me:{KEY}", voices__folder=str(tmp_path / "voices"))


@pytest.fixture
def page(open_page: Callable, url: str) -> Any:
    return open_view(open_page, url, KEY)


def open_view(open_page: Callable, url: str, key: str, **options: Any) -> Any:
    page = open_page(f"{url}/#voices", **options)
    page.expected = ["WebSocket connection", "401"]
    page.locator(".notice", has_text="asks for an API key").wait_for()
    page.click("#access summary")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    until(page, READY)
    until(page, LISTED)
    page.click("#access summary")
    return page


def upload(page: Any, path: Path, name: str) -> None:
    page.set_input_files("#recording-file", path)
    page.locator("#trim").wait_for()
    fill_in(page, name)
    page.click("#store-voice")
    page.locator("#recording-status", has_text=f"Voice {name} is stored.").wait_for()


def fill_in(page: Any, name: str) -> None:
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Consent: how").fill("she agreed on 1 May")


def ask(url: str, path: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(url + path, headers={"X-API-Key": KEY})) as answer:
        return json.load(answer)


def stored(url: str) -> dict[str, dict[str, Any]]:
    return {voice["name"]: voice for voice in ask(url, "/v1/audio/voices")["uploaded_voices"]}


def test_recording_of_the_microphone_is_trimmed_and_stored(page: Any, url: str) -> None:
    page.click("#record")
    until(page, "parseFloat(document.querySelector('#record-time').textContent) >= 2")
    assert page.get_attribute("#record", "aria-pressed") == "true"
    page.click("#record")
    page.locator("#trim").wait_for()
    page.locator("#trim-start").evaluate(
        "(slider) => { slider.value = 0.4; slider.dispatchEvent(new Event('input')); }"
    )
    page.locator("#trim-end").evaluate("(slider) => { slider.value = 1.65; slider.dispatchEvent(new Event('input')); }")
    assert page.inner_text("#trim-length") == "1.25 s, from 0.40 to 1.65 s"
    fill_in(page, "ann")
    page.get_by_label("Transcript").fill("Hello there.")
    page.click("#store-voice")
    page.locator("#recording-status", has_text="Voice ann is stored.").wait_for()
    ann = stored(url)["ann"]
    assert (ann["sample_s"], ann["ref_text"], ann["consent"]) == (1.25, "Hello there.", "she agreed on 1 May")
    embedding = ask(url, "/v1/audio/voices/ann/embedding")["embedding"]
    assert embedding == pytest.approx([1.25 * BYTES_PER_S] * EMBEDDING_SIZE, abs=8)
    assert "ann" in page.locator("#voice option").all_text_contents()
    assert page.locator("#trim").is_hidden()
    with page.expect_response("**/v1/audio/speech") as spoken:
        page.get_by_role("button", name="Listen ann").click()
    assert (spoken.value.status, spoken.value.request.post_data_json["voice"]) == (200, "ann")


@pytest.mark.slow
def test_part_out_of_range_is_refused_before_it_is_sent(page: Any, url: str, tmp_path: Path) -> None:
    (tmp_path / "short.wav").write_bytes(wav_file(tone(0.5, 16_000), 16_000))
    fill_in(page, "ann")
    page.click("#store-voice")
    page.locator("#recording-status", has_text="Record something").wait_for()
    page.set_input_files("#recording-file", tmp_path / "short.wav")
    page.locator("#trim").wait_for()
    page.click("#store-voice")
    page.locator("#recording-status", has_text="Select 1 to 30 s; 0.50 s are selected.").wait_for()
    (tmp_path / "no.wav").write_bytes(b"no recording")
    page.set_input_files("#recording-file", tmp_path / "no.wav")
    page.locator("#recording-status", has_text="cannot decode no.wav").wait_for()
    assert stored(url) == {}


def test_voice_is_renamed_and_deleted(page: Any, url: str, tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(wav_file(tone(1.5, 16_000), 16_000))
    upload(page, tmp_path / "a.wav", "ann")
    page.get_by_role("button", name="Rename ann").click()
    page.get_by_label("New name of ann").fill("ada")
    page.expected += ["403"]
    page.keyboard.press("Enter")
    page.locator(".notice", has_text="'ada' belongs to the model").wait_for()
    page.get_by_label("New name of ann").fill("anna")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Rename anna").wait_for()
    until(page, "document.activeElement.ariaLabel === 'Listen anna'")
    assert list(stored(url)) == ["anna"]
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.get_by_role("button", name="Delete anna").click()
    assert list(stored(url)) == ["anna"]
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete anna").click()
    page.get_by_role("button", name="Delete anna").wait_for(state="detached")
    assert stored(url) == {}


def test_embedding_is_downloaded_and_blended(page: Any, url: str, tmp_path: Path) -> None:
    for name, length_s in (("ann", 1.0), ("bob", 2.0)):
        (tmp_path / f"{name}.wav").write_bytes(wav_file(tone(length_s, 24_000), 24_000))
        upload(page, tmp_path / f"{name}.wav", name)
    with page.expect_download() as download:
        page.get_by_role("button", name="Embedding bob").click()
    download.value.save_as(tmp_path / "bob.json")
    assert download.value.suggested_filename == "bob.json"
    numbers = {name: ask(url, f"/v1/audio/voices/{name}/embedding")["embedding"] for name in ("ann", "bob")}
    assert json.loads((tmp_path / "bob.json").read_text()) == numbers["bob"]
    page.locator("#blend-weight").focus()
    page.keyboard.press("ArrowLeft")
    assert page.inner_text("#blend-share") == "55 % ann, 45 % bob"
    page.fill("#blend-name", "both")
    page.fill("#blend-consent", "both agreed")
    page.click("#store-blend")
    page.get_by_role("button", name="Delete both").wait_for()
    blended = ask(url, "/v1/audio/voices/both/embedding")["embedding"]
    expected = 0.55 * np.array(numbers["ann"]) + 0.45 * np.array(numbers["bob"])
    assert blended == pytest.approx(expected.tolist(), rel=1e-6)
    assert stored(url)["both"]["speaker_description"] == "55 % ann, 45 % bob"


def test_token_lists_voices_and_changes_none(open_page: Callable, url: str) -> None:
    page = open_view(open_page, url, speech_token(url, KEY))
    page.locator("#voices-note", has_text="needs an API key").wait_for()
    assert page.is_disabled("#record")
    assert page.locator("#voice-list button").all_inner_texts() == ["Listen", "Listen"]
    assert page.locator("#blend-form").is_hidden()


@pytest.mark.slow
def test_voice_is_designed_from_a_description(open_page: Callable, serve: Callable, tmp_path: Path) -> None:
    page = open_page(f"{serve(QUICK | {'info': {'task': 'voice_design', 'voices': []}})}/#voices")
    form = page.locator("#design-form")
    form.wait_for()
    assert page.is_disabled("#design-save")
    form.get_by_label("Description").fill(" A calm old man. ")
    page.fill("#voice-sentence", "Good evening.")
    seeds = []
    for chosen in ("", "7"):
        form.get_by_label("Seed").fill(chosen)
        with page.expect_response("**/v1/audio/speech") as spoken:
            form.get_by_role("button", name="Listen").click()
        body = spoken.value.request.post_data_json
        assert (spoken.value.status, body["input"], body["instructions"]) == (200, "Good evening.", "A calm old man.")
        page.locator("#design-version", has_text=f"Seed {body['seed']}").wait_for()
        seeds.append(body["seed"])
    assert (seeds[0] == int(seeds[0]), seeds[1]) == (True, 7)
    with page.expect_download() as download:
        page.click("#design-save")
    assert download.value.suggested_filename == "voice-7.wav"
    download.value.save_as(tmp_path / "voice.wav")
    assert (tmp_path / "voice.wav").read_bytes() == spoken.value.body()


@pytest.mark.slow
def test_model_that_cannot_clone_says_so(open_page: Callable, serve: Callable) -> None:
    page = open_page(f"{serve(QUICK)}/#voices")
    page.locator("#voices-note", has_text="fake cannot make voices from recordings").wait_for()
    assert page.is_disabled("#store-voice")


@pytest.mark.slow
def test_voices_on_phone_have_names_and_no_scroll(open_page: Callable, url: str, tmp_path: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page = open_view(open_page, url, KEY, viewport={"width": 360, "height": 700}, color_scheme=scheme)
        if not stored(url):
            (tmp_path / "a.wav").write_bytes(wav_file(tone(1.5, 16_000), 16_000))
            for name in ("a" * 64, "bob"):
                upload(page, tmp_path / "a.wav", name)
        page.set_input_files("#recording-file", tmp_path / "a.wav")
        page.locator("#trim").wait_for()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        grounds.append(page.evaluate("getComputedStyle(document.querySelector('.voice')).borderTopColor"))
        nameless = page.evaluate("""[...document.querySelectorAll('#view-voices :is(button, input, select, textarea)')]
            .filter((element) => !(element.labels?.length || element.ariaLabel || element.textContent.trim()))
            .map((element) => element.outerHTML)""")
        assert nameless == []
    assert grounds[0] != grounds[1]


def test_keyboard_reaches_every_control_in_order(page: Any) -> None:
    views, form = (page.locator(id).bounding_box() for id in (".views", "#recording-form"))
    assert views["y"] + views["height"] < form["y"]
    page.focus("#to-voices")
    assert page.get_attribute("#to-voices", "aria-current") == "page"
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.ariaLabel"))
    order = ["record", "recording-file", "voice-name", "voice-transcript", "voice-description", "voice-consent"]
    assert [name for name in reached if name][-9:] == [*order, "store-voice", "voice-sentence", "Listen ada"]
