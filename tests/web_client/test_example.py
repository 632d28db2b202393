"""The example in docs/guides/web-client.md runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.web_client.conftest import until

GUIDE = (Path(__file__).parents[2] / "docs" / "guides" / "web-client.md").read_text()
STUBS = """
  const said = globalThis.said = [];
  const showHint = (hidden) => said.push(`hint ${hidden}`);
  const remember = (text, remaining) => said.push({text, remaining});
  const button = {};
  const askTheModel = async function* () { yield* "Hello to you, and to everybody else here.".match(/\\S+ ?/g); };
  let talk;
  const onSpeechDetected = (then) => { talk = then; };
"""
RUN = "globalThis.example = {button, session, interrupt: () => talk()};"


def test_it_speaks_and_stops(open_page, quick):
    code = re.search(r"```js\n(.*?)```", GUIDE, re.DOTALL)[1]
    assert len(code.splitlines()) <= 22
    code = re.sub(r'import (\{.*?\}) from "\./index\.js";', r'const \1 = await import("/index.js");', code)
    code = code.replace('{ url: "https://voice.example", api_key: "..." }', "{}").replace('"clara"', '"ada"')
    page = open_page(f"{quick}/blank.html")
    page.evaluate(f"async () => {{ {STUBS} {code} {RUN} }}")
    page.evaluate("() => { example.answered = example.button.onclick(); }")
    assert page.evaluate("example.answered") == "completed"
    page.evaluate("() => { example.answered = example.button.onclick(); }")
    until(page, "example.session.active.some((response) => response.played_ms > 300)")
    page.evaluate("example.interrupt()")
    assert page.evaluate("example.answered") == "cancelled"
    until(page, "said.some((entry) => entry.remaining)")


def test_everything_listed_exists(open_page, quick):
    page = open_page(f"{quick}/blank.html")
    told = page.evaluate("""async () => {
      const {VoicewireSession, SpokenResponse, Player, wavFile, native} = await import("/index.js");
      const session = new VoicewireSession();
      await session.connect();
      const response = await session.speak({text: "Hello.", end: true});
      await response.finished;
      const names = (thing) => [...Object.keys(thing), ...Object.getOwnPropertyNames(Object.getPrototypeOf(thing))];
      const found = [names(session), names(response)];
      await session.close();
      return found;
    }""")
    tables = re.findall(r"\| `(?:VoicewireSession|SpokenResponse)` \| \|\n(.*?)\n\n", GUIDE, re.DOTALL)
    for table, there in zip(tables, told, strict=True):
        first_cells = [row.split("|")[1] for row in table.splitlines() if not row.startswith(("| events", "|--"))]
        names = re.findall(r"`(?:await )?(\w+)[(`]", " ".join(first_cells))
        assert names
        assert set(names) - {"new"} <= set(there)
