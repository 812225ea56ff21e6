"""`vllm serve` with a made-up model, and with or without async scheduling.

    python tests/vllm/serve_http.py sync|async ARGUMENT…

vLLM's CPU platform turns async scheduling off, and its command line has no way to name an executor.
All else is vLLM's own: its command, its HTTP server, its front end and its EngineCore processes.
"""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def main() -> None:
    way, *arguments = sys.argv[1:]
    sys.path.insert(0, str(HERE))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    from token_executor import TokenExecutor
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.main import main as vllm_main

    original = AsyncEngineArgs.create_engine_config

    @functools.wraps(original)
    def create_engine_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.distributed_executor_backend = TokenExecutor
        config = original(self, *args, **kwargs)
        config.scheduler_config.async_scheduling = way == "async"
        return config

    AsyncEngineArgs.create_engine_config = create_engine_config  # type: ignore[method-assign]
    sys.argv = ["vllm", "serve", *arguments]
    vllm_main()


if __name__ == "__main__":
    main()
