"""The inspector must start on a machine that has never heard of torch."""

import subprocess
import sys

INSPECTOR = (
    "seqtop",
    "seqtop.cli.main",
    "seqtop.sequence",
    "seqtop.wire",
    "seqtop.state",
    "seqtop.live.session",
    "seqtop.demo",
    "seqtop.export.json_document",
    "seqtop.tui.app",
)


def loaded_with(*modules: str) -> set[str]:
    """The modules that are loaded after an import of `modules`."""
    program = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    return {*subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()}


def test_inspector_loads_nothing_heavy() -> None:
    assert not {"torch", "transformers", "numpy"} & loaded_with(*INSPECTOR)


def test_the_driver_of_predictions_does_not_load_torch() -> None:
    """Two of them start for each prediction, and torch would be most of that time."""
    assert "torch" not in loaded_with("engine_stub.entrypoints.whatif")


ATTACH = (
    "seqtop.cli.main",
    "seqtop.cli.attach",
    "seqtop.live.session",
    "seqtop.history.memory_store",
    "seqtop.tui.app",
    "seqtop.tui.settings",
)
"""The modules that `seqtop attach` loads before its first frame."""
NOT_FOR_ATTACH = (
    "http.client",
    "multiprocessing",
    "rich.markdown",
    "rich.syntax",
    "textual.widgets._data_table",
    "textual.widgets._markdown",
    "tokenizers",
    "zmq.auth.thread",
    "seqtop.adapters",
    "seqtop.checks.report",
    "seqtop.demo",
    "seqtop.export",
    "seqtop.kv.app",
    "seqtop.web",
    "seqtop.kv.subscriber",
    "seqtop.transport.publisher",
    "seqtop.transport.stream_server",
)


def test_attach_loads_nothing_that_it_does_not_show() -> None:
    assert not {*NOT_FOR_ATTACH} & loaded_with(*ATTACH)
