"""Models by their names on the Hub: from its cache, or one sentence on why not."""

from pathlib import Path

import huggingface_hub
import pytest

from engine_stub.config import EngineConfig
from engine_stub.engine import LLMEngine
from engine_stub.entrypoints.reporting import engine_info
from engine_stub.model_executor.hub import find_model
from seqtop.sequence import SamplingParams
from tests.support.checkpoints import make_checkpoint


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hub's cache, offline."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def test_a_cached_repository_runs_under_its_name(cache: Path) -> None:
    repository = cache / "models--some-lab--tiny.qwen"
    make_checkpoint("qwen2", repository / "snapshots" / "0123abcd")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abcd")
    config = EngineConfig(model=Path("some-lab/tiny.qwen"), device="cpu", num_gpu_blocks=8)
    engine = LLMEngine(config)
    assert engine.config.model == repository / "snapshots" / "0123abcd"
    assert engine_info(engine, engine_id="e", control=False).model == "some-lab/tiny.qwen"
    (group,) = engine.generate(["hi"], SamplingParams(max_tokens=2, ignore_eos=True))
    assert group.first_seq.get_output_len() == 2


def test_a_repository_that_is_not_cached_offline(cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"some-lab/none.*cannot be reached.*directory"):
        find_model("some-lab/none")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("GatedRepoError", "accept its terms"),
        ("RepositoryNotFoundError", "no such repository that you may read"),
    ],
)
def test_refusals_of_the_hub_are_explained(
    monkeypatch: pytest.MonkeyPatch, error: str, words: str
) -> None:
    kind = getattr(huggingface_hub.errors, error)

    def refuse(*_: object, **__: object) -> None:
        raise kind.__new__(kind)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(FileNotFoundError, match=words):
        find_model("some-lab/theirs")


@pytest.mark.parametrize("name", ["/no/such/place", "nowhere", "a/b/c", "../x"])
def test_directories_that_do_not_exist(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="no model directory"):
        find_model(name)
