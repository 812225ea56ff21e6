"""`--kv-events` as a user types it: in a terminal, and for scripts."""

import json
from pathlib import Path
from threading import Thread

import pytest
from tokenizers import Tokenizer

from tests.support.commands import SEQTOP, assert_one_sentence, run, run_here
from tests.support.kv_publisher import KvPublisher, removed, stored
from tests.support.terminal import Terminal

MODEL = Path(__file__).parents[2] / "engine_stub" / "weights"


def test_show_prints_what_is_cached(endpoints: tuple[str, str]) -> None:
    with KvPublisher(*endpoints) as publisher:
        publisher.send(stored([b"\x01" * 32, b"\x02" * 32], medium="GPU"))
        publisher.send(stored([7], b"\x02" * 32), removed([b"\x01" * 32]))
        answering = Thread(target=publisher.answer)
        answering.start()
        endpoint, replay = endpoints
        done = run(*SEQTOP, "show", "--json", "--kv-events", endpoint, "--replay", replay)
        answering.join()
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["complete"], document["gap"], document["num_blocks"]) == (True, None, 2)
    assert document["connection"]["state"] == "live"
    assert [(block["hash"], block["parent"]) for block in document["blocks"]] == [
        ("02" * 32, "01" * 32),
        (7, "02" * 32),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["attach", "--replay", "tcp://127.0.0.1:1"], ["--replay needs --kv-events"]),
        (["attach", "--kv-events", "there"], ["'there' is not an endpoint"]),
        (["attach", "tcp://127.0.0.1:1", "--kv-events", "tcp://127.0.0.1:2"], ["ENDPOINT"]),
        (["attach", "--kv-events", "tcp://127.0.0.1:2", "--sort", "out"], ["--sort"]),
        (["attach", "--kv-events", "tcp://127.0.0.1:2", "--tokenizer", "/no"], ["'/no'"]),
        (["show", "--kv-events", "tcp://127.0.0.1:2"], ["--json"]),
        (["show", "--json", "--kv-events", "tcp://127.0.0.1:2"], ["--replay"]),
        (["show", "--json", "--follow", "--kv-events", "tcp://127.0.0.1:2"], ["--follow"]),
    ],
)
def test_mistakes_get_one_sentence(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert_one_sentence(run_here(capsys, *arguments), 2, *words)


def test_nobody_there(endpoints: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--kv-events", endpoints[0], "--replay", endpoints[1], "--timeout", "0.2"]
    assert_one_sentence(run_here(capsys, "show", "--json", *asked), 1, "no event from")


def test_attach_in_a_terminal_shows_tokens_as_the_models_text(endpoints: tuple[str, str]) -> None:
    words = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode("Once upon a time").ids
    with KvPublisher(*endpoints) as publisher:
        publisher.send(["BlockStored", [5], None, words, len(words), None, "GPU"])
        answering = Thread(target=publisher.answer)
        answering.start()
        endpoint, replay = endpoints
        command = [*SEQTOP, "attach", "--kv-events", endpoint, "--replay", replay]
        terminal = Terminal(*command, "--tokenizer", str(MODEL))
        try:
            terminal.wait_until(lambda: "● LIVE" in terminal.text)
            terminal.wait_until(lambda: "Once upon a time" in terminal.text)
            terminal.wait_until(lambda: "0000000000000005" in terminal.text)
            terminal.press("q")
            terminal.wait_until(lambda: terminal.process.poll() is not None)
            assert terminal.process.returncode == 0
        finally:
            terminal.close()
            answering.join()
