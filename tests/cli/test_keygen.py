"""`seqtop keygen`, and engines that require keys."""

import subprocess
from pathlib import Path

import pytest

from tests.support.commands import ENGINE, SEQTOP, assert_one_sentence, run, run_here
from tests.support.forked import start
from tests.support.waiting import SECONDS, wait_until


def test_keys_open_an_engine_to_their_holders_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("engine", "viewers", "unlisted"):
        done = run_here(capsys, "keygen", "-o", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
        assert f"{name}.key_secret: the secret key, for you alone" in done.stdout
    again = run_here(capsys, "keygen", "-o", str(tmp_path / "engine"))
    assert_one_sentence(again, 1, "exists already")
    endpoint = f"ipc://{tmp_path}/e"
    process = start(
        [
            *ENGINE, "serve", "--demo", "--bind", endpoint, "--device", "cpu",
            "--server-secret-key", str(tmp_path / "engine.key_secret"),
            "--authorized-clients", str(tmp_path / "viewers.key"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert "published at" in process.stdout.readline()
        public, mine = str(tmp_path / "engine.key"), "--client-key YOURS.key_secret"
        assert f"seqtop attach {endpoint} --server-key {public} {mine}" in process.stdout.readline()
        keys = ("--server-key", str(tmp_path / "engine.key"), "--client-key")
        show = (*SEQTOP, "show", endpoint, "--timeout", f"{SECONDS:g}", *keys)
        # The first request may not have arrived.
        wait_until(lambda: "typed-1" in run(*show, str(tmp_path / "viewers.key_secret")).stdout)
        done = run(*show, str(tmp_path / "unlisted.key_secret"))
        assert_one_sentence(done, 1, "refused this viewer's key")
        assert_one_sentence(run_here(capsys, "check", endpoint), 1, "expects --server-key")
        half = run_here(capsys, "record", endpoint, "-o", "/dev/null", *keys[:2])
        assert_one_sentence(half, 2, "belong together")
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 0
