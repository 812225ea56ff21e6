"""The app needs a terminal."""

from tests.support.commands import SEQTOP, assert_one_sentence, run


def test_app_without_a_terminal(engine: str) -> None:
    assert_one_sentence(run(*SEQTOP, "attach", engine), 1, "needs a terminal", "seqtop show")
