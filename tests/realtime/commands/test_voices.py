from __future__ import annotations

from realtime.cli import main


def test_every_voice_has_its_line(fake_engine, capsys):
    assert main(["voices"]) == 0
    assert capsys.readouterr().out.splitlines() == ["ada  en      a low hum", "ben  en, de  a higher hum"]
    assert not fake_engine.alive
