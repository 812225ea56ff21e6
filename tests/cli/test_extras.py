"""A command that needs an extra says which, where a package of it is not installed."""

import sys
from pathlib import Path

import pytest

from seqtop import demo
from seqtop.cli.main import main


@pytest.mark.parametrize(
    ("package", "command", "said"),
    [
        ("aiohttp", ["serve", "demo"], "serve needs the extra web: pip install 'seqtop-llm[web]'"),
        ("mcp", ["mcp", "RUN"], "mcp needs the extra mcp: pip install 'seqtop-llm[mcp]'"),
        (
            "kr8s",
            ["attach", "--kubernetes", "app=vllm"],
            "--kubernetes needs the extra kubernetes: pip install 'seqtop-llm[kubernetes]'",
        ),
        (
            "ray",
            ["attach", "--ray"],
            "--ray needs the extra ray: pip install 'seqtop-llm[ray]'",
        ),
        (
            "pyarrow",
            ["export", "RUN", "--parquet", "-o", "OUT"],
            "--parquet needs pyarrow: pip install 'seqtop-llm[export]'",
        ),
    ],
)
def test_missing_extra_is_named(
    package: str,
    command: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = {"RUN": str(demo.RECORDED_RUN), "OUT": str(tmp_path / "out")}
    monkeypatch.setitem(sys.modules, package, None)
    for module in (
        "seqtop.discovery.kubernetes",
        "seqtop.discovery.ray_actors",
        "seqtop.mcp.server",
        "seqtop.web.server",
    ):
        monkeypatch.delitem(sys.modules, module, raising=False)
    assert main([paths.get(part, part) for part in command]) != 0
    assert capsys.readouterr().err.startswith(f"seqtop: {said}")
