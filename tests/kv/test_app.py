"""The app for KV-cache events: its connection, its help, and hostile names."""

from tests.support.kv_scene import HOSTILE, ScriptedKvSource, app_of, run
from tests.support.piloting import play, screen


def test_hostile_names_reach_no_terminal() -> None:
    source = ScriptedKvSource()
    hostile = run(1, 0, 3, lora_name=HOSTILE, kv_cache_spec_kind=HOSTILE, medium=HOSTILE)
    source.send(hostile, time=float("nan"))
    app = app_of(source, decode=lambda ids: HOSTILE * len(ids))
    with play(app, (160, 30)) as pilot:
        pilot.press("2", "1")
        shown = screen(app)
        assert "␛]52;c;YQ==␇[red]" in shown
        assert not set("\x1b\x07\u202e") & set(shown)


def test_help_names_its_own_keys_only(source: ScriptedKvSource) -> None:
    app = app_of(source)
    with play(app, (100, 60)) as pilot:
        pilot.press("?")
        shown = screen(app)
        assert "prefix tree" in shown
        assert "ttft" not in shown.lower()
        assert "Filter" not in shown
        pilot.press("escape", "T", "q")
