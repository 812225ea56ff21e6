"""`seqtop check`."""

from tests.support.commands import SEQTOP, assert_one_sentence, run


def test_check_of_a_running_engine_finds_nothing(engine: str) -> None:
    done = run(*SEQTOP, "check", engine, "--duration", "2")
    assert done.returncode == 0, done.stdout
    assert "0 findings" in done.stdout
    assert ": 0 steps" not in done.stdout


def test_check_of_what_is_not_there() -> None:
    done = run(*SEQTOP, "check", "tcp://127.0.0.1:1", "--timeout", "0.3")
    assert_one_sentence(done, 1, "no engine answered")
    assert_one_sentence(run(*SEQTOP, "check", "/nonexistent"), 1, "/nonexistent")
