"""The `engine-stub` command.

Exit status: 0 for success, 1 when the engine cannot be started, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import logging
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from engine_stub.config import CHOICES, DEFAULT_MODEL, EngineConfig
from engine_stub.model_executor.hub import check_model
from seqtop import __version__
from seqtop.flight_recorder import process as flight_recorder
from seqtop.process.argparse_ext import SHELLS, CommandParser, completion_script, not_negative
from seqtop.process.distribution import install_command
from seqtop.process.signals import when_stdin_closes
from seqtop.text import format as fmt
from seqtop.text.ascii_output import replace_unencodable
from seqtop.text.sanitize import safe_line
from seqtop.text.tokenizer_file import TokenizerError
from seqtop.transport import local_engines
from seqtop.transport.curve_keys import KeyFileError, engine_keys
from seqtop.transport.endpoints import DEFAULT_ENDPOINT, EndpointError, check_bind, is_loopback
from seqtop.transport.publisher import PublishError
from seqtop.whatif.trace_options import add_trace_options, read_trace
from seqtop.whatif.traces import FORMATS, Trace, TraceError

if TYPE_CHECKING:
    from engine_stub.engine import LLMEngine
    from engine_stub.entrypoints.openai.http_server import HttpServer
    from engine_stub.entrypoints.publisher_link import PublisherLink
    from seqtop.wire.messages import EngineInfo


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    replace_unencodable(sys.stdout, sys.stderr)
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "engine_stub", "seqtop"):
            raise
        return _fail(f"{package} is not installed: {install_command('engine')}")


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="engine-stub", description="The small inference engine that comes with seqtop."
    )
    parser.add_argument("--version", action="version", version=f"engine-stub {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="run a model and publish the state of its sequences",
        description="Run a model and publish the state of its sequences.",
        epilog="example: engine-stub serve --control, then in another terminal: seqtop attach",
    )
    _add_serve(serve)
    serve.set_defaults(run=_serve)
    completes = commands.add_parser(
        "completion",
        help="print a completion script for a shell",
        description="Print a script that lets a shell complete commands, options and files.",
        epilog='example: eval "$(engine-stub completion bash)"',
    )
    completes.add_argument("shell", choices=SHELLS)
    completes.set_defaults(run=_complete)
    return parser


def _complete(options: argparse.Namespace) -> int:
    print(completion_script(_parser(), options.shell))
    return 0


def _add_serve(serve: argparse.ArgumentParser) -> None:
    serve.add_argument(
        "--bind",
        default=DEFAULT_ENDPOINT,
        metavar="ENDPOINT",
        help=f"where to publish; snapshots are served one port higher ({DEFAULT_ENDPOINT})",
    )
    serve.add_argument(
        "--insecure",
        action="store_true",
        help="allow --bind and --http to be reachable from other machines: anybody who reaches them"
        " can read all prompts and send new ones",
    )
    serve.add_argument(
        "--http",
        metavar="HOST:PORT",
        help="serve OpenAI's API at this address, such as 127.0.0.1:8000, without authentication",
    )
    serve.add_argument(
        "--control", action="store_true", help="let viewers submit prompts and abort requests"
    )
    serve.add_argument(
        "--redact",
        action="store_true",
        help="publish no prompts, outputs or token ids, only their lengths",
    )
    _add_keys(serve)
    serve.add_argument("--name", default="engine-stub", help="the name that viewers show")
    serve.add_argument(
        "--pace", type=not_negative, default=0.0, metavar="STEPS", help="steps per second"
    )
    workload = serve.add_mutually_exclusive_group()
    workload.add_argument("--demo", action="store_true", help="generate an endless workload")
    workload.add_argument(
        "--load",
        metavar="FILE",
        help="run the requests of a trace at the times in it: one that seqtop export --mooncake"
        f" writes, or another one of {FORMATS}; prompts are made up, but share the same prefixes",
    )
    add_trace_options(serve)
    serve.add_argument(
        "--until-stdin-closes",
        action="store_true",
        help="exit at the end of standard input (for a parent process)",
    )
    serve.add_argument(
        "--flight-recorder",
        metavar="DIR",
        help="start a flight recorder, which writes the last minutes to this directory when"
        " something is wrong; without prompts and outputs",
    )
    serve.add_argument(
        "--flight-recorder-options",
        default="",
        metavar="OPTIONS",
        help="further options of seqtop record for it, such as '--slo ttft=1 --no-redact'",
    )
    engine = serve.add_argument_group("engine")
    engine.add_argument(
        "--model",
        type=Path,
        metavar="MODEL",
        help="a Llama, Mistral, Qwen2 or Qwen3 checkpoint: a Hugging Face directory, or"
        " organisation/name on the Hugging Face Hub (default: the bundled one)",
    )
    engine.add_argument("--device", help="cpu, cuda or auto")
    engine.add_argument("--seed", type=int, help="the seed of requests without one")
    engine.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="CPU threads of torch (default: torch's own; demo: 1)",
    )
    for name, description in (
        ("block-size", "slots per KV-cache block"),
        ("num-gpu-blocks", "blocks in the KV pool"),
        ("max-num-seqs", "most sequences that run at once"),
        ("max-num-batched-tokens", "token budget of a step"),
        ("max-model-len", "longest prompt and output together, in tokens"),
        ("num-speculative-tokens", "longest draft of speculative decoding, in tokens"),
        ("num-scheduler-steps", "decode iterations per call of the scheduler"),
        ("pipeline-parallel-size", "pipeline stages, each a process of its own"),
    ):
        engine.add_argument(f"--{name}", type=int, metavar="N", help=description)
    engine.add_argument(
        "--gpu-memory-utilization",
        type=float,
        metavar="PART",
        help="the part of a GPU's memory that may be in use, by others too, which decides the size"
        " of the KV pool (default: 0.9)",
    )
    engine.add_argument(
        *("--cpu-blocks", "--num-cpu-blocks"),
        dest="num_cpu_blocks",
        type=int,
        metavar="N",
        help="blocks in host memory to swap to (default with swapping: as many as in the pool, "
        "up to 4 GiB)",
    )
    for name, description in (
        ("dtype", "type of weights and KV cache"),
        ("preemption-mode", "treatment of a preempted request's blocks"),
        ("preemption-victim", "the running request that is preempted, of those behind"),
        ("speculative", "source of draft tokens, which the model verifies"),
        ("pooling-type", "tokens whose hidden states make an embedding"),
    ):
        choices = CHOICES[name.replace("-", "_")]
        engine.add_argument(f"--{name}", choices=choices, help=description)
    engine.add_argument(
        "--policy",
        dest="scheduling_policy",
        metavar="FILE.py",
        help="a scheduling policy of your own: the order of requests, and which one is preempted",
    )
    for name in ("enable-chunked-prefill", "enable-prefix-caching", "pooling-normalize"):
        engine.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    engine.add_argument(
        "--enforce-eager",
        action=argparse.BooleanOptionalAction,
        help="compute steps on CUDA without CUDA graphs",
    )


def _add_keys(serve: argparse.ArgumentParser) -> None:
    keys = serve.add_argument_group("keys", "authentication by keys, and encryption")
    keys.add_argument(
        "--server-secret-key",
        metavar="FILE",
        help="this engine's secret key file, made by seqtop keygen",
    )
    keys.add_argument(
        "--authorized-clients",
        metavar="DIR|FILE",
        help="viewers that may connect: a public key file, or a directory of such files (*.key)",
    )
    keys.add_argument(
        "--control-clients",
        metavar="DIR|FILE",
        help="viewers that may also submit and abort, with --control (default: all authorized)",
    )


def _keys(options: argparse.Namespace) -> tuple[str, str, str | None] | None:
    """Returns the files of the keys, as `Start` has them."""
    given = (options.server_secret_key, options.authorized_clients)
    if given == (None, None) and options.control_clients is None:
        return None
    if None in given:
        raise KeyFileError("--server-secret-key and --authorized-clients must be given together")
    return (*given, options.control_clients)


def _check_http(address: str, *, insecure: bool) -> None:
    """Raises `EndpointError` unless HTTP may be served at `address`."""
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EndpointError(
            f"--http {address!r} is not of the form HOST:PORT, such as 127.0.0.1:8000"
        )
    if not (insecure or is_loopback(host)):
        raise EndpointError(
            f"--http {address} can be reached from other machines, and anybody who reaches it can"
            " send prompts, as it has no authentication; serve 127.0.0.1 and tunnel, or pass"
            " --insecure"
        )


def _serve(options: argparse.Namespace) -> int:
    try:
        keys = _keys(options)
        if keys is not None:
            engine_keys(*keys)  # only to check them
        check_bind(options.bind, insecure=options.insecure, has_keys=keys is not None)
        if options.http is not None:
            _check_http(options.http, insecure=options.insecure)
    except (EndpointError, KeyFileError) as error:
        return _fail(str(error), status=2)
    if options.model is not None:
        try:
            check_model(options.model)
        except FileNotFoundError as error:
            return _fail(str(error))
    trace = None
    if options.load is not None:
        try:
            trace = read_trace(
                options.load,
                tokenizer=options.model or DEFAULT_MODEL,
                request_rate=options.request_rate,
                limit=options.limit,
                scale_arrivals=options.scale_arrivals,
                scale_lengths=options.scale_lengths,
            )
        except (TraceError, TokenizerError) as error:
            return _fail(f"--load {options.load}: {error}", status=2)
        except OSError as error:
            return _fail(f"--load {options.load} cannot be read: {error.strerror}", status=2)
    # The engine needs no numpy; torch warns if it is missing.
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    logging.basicConfig(format="engine-stub: %(message)s")
    logging.getLogger("engine_stub").setLevel(logging.INFO)
    from engine_stub.entrypoints.publisher_link import PublisherLink

    # torch takes seconds to import, so wrong arguments are reported before, and the publisher's
    # process starts meanwhile.
    with contextlib.closing(PublisherLink()) as publisher:
        return _run(options, trace, publisher)


def _run(options: argparse.Namespace, trace: Trace | None, publisher: PublisherLink) -> int:
    import torch

    from engine_stub.engine import LLMEngine
    from engine_stub.entrypoints.load import LoadSource
    from engine_stub.entrypoints.reporting import engine_info
    from engine_stub.entrypoints.reports import Start
    from engine_stub.entrypoints.server import EngineServer, RequestSource
    from engine_stub.entrypoints.workload import DEMO_LIMITS, arrivals
    from engine_stub.worker.pipeline import StageError

    given = {
        field.name: value
        for field in dataclasses.fields(EngineConfig)
        if (value := getattr(options, field.name)) is not None
    }
    if options.demo:
        given = DEMO_LIMITS | given
    # The demo's small model is no faster with a second thread, and much slower on a busy machine.
    if threads := options.threads or (1 if options.demo else 0):
        torch.set_num_threads(threads)
    try:
        engine = LLMEngine(EngineConfig(**given))
        sources: list[RequestSource] = []
        if trace is not None:
            trace = trace.fitting(engine.max_model_len)
            for reason, number in trace.left_out.items():
                print(
                    f"engine-stub: --load leaves out {fmt.plural(number, 'request')} {reason}",
                    file=sys.stderr,
                )
            sources.append(
                LoadSource(
                    trace,
                    vocab_size=engine.model_config.vocab_size,
                    block_size=engine.config.block_size,
                    clock=engine.clock,
                )
            )
        info = engine_info(
            engine,
            engine_id=options.name,
            control=options.control,
            redacted=options.redact,
        )
    except TraceError as error:
        engine.close()
        return _fail(f"--load {options.load}: {error}", status=2)
    except (ValueError, OSError, StageError) as error:
        return _fail(str(error))
    except torch.OutOfMemoryError as error:
        return _fail(f"the device has too little memory for the model and its KV pool: {error}")
    workload = arrivals() if options.demo else ()
    with contextlib.ExitStack() as running:
        running.callback(engine.close)
        if options.http is not None:
            # It listens before the publisher does, so that who sees the engine can send requests.
            try:
                listener = running.enter_context(_http_listener(options, engine, info))
            except ValueError as error:
                return _fail(str(error))
            except OSError as error:
                return _fail(f"--http {options.http} cannot be served: {error.strerror}")
            sources.append(listener.bridge)
        try:
            publisher.start(Start(info, options.bind, options.insecure, _keys(options)))
        except (ValueError, OSError, PublishError) as error:
            return _fail(str(error))
        if not options.until_stdin_closes:  # else it belongs to the program that started it
            running.enter_context(local_engines.announced(options.bind, info.engine_id))
        if options.flight_recorder is not None:
            try:
                recorder = flight_recorder.started(
                    options.bind, options.flight_recorder, options.flight_recorder_options
                )
                running.enter_context(recorder)
            except flight_recorder.FlightRecorderError as error:
                logging.getLogger("engine_stub").warning("%s", error)
        print(f"engine-stub: {safe_line(info.model)} on {info.device}, published at {options.bind}")
        print(f"engine-stub: to watch it: {_attach_command(options)}")
        if options.http is not None:
            print(f"engine-stub: OpenAI's API is served at {listener.url}")
        sys.stdout.flush()
        server = EngineServer(
            engine, publisher, pace=options.pace, workload=workload, sources=sources
        )
        # Full collections would look at the many objects of torch and the model again and again, in
        # the middle of steps. They are no garbage until the process ends.
        gc.collect()
        gc.freeze()
        try:
            server.run(_stop_signal(watch_stdin=options.until_stdin_closes))
        except StageError as error:
            publisher.close("a pipeline stage has failed; see the engine's log", failed=True)
            return _fail(str(error))
        except Exception as error:
            # Not caused by one request, so that the engine's state is unknown.
            logging.getLogger("engine_stub").exception("the engine cannot continue")
            name = type(error).__name__  # the message may contain a part of a prompt
            publisher.close(f"the engine has failed with {name}; see its log", failed=True)
            return _fail(f"the engine has stopped: {name}: {error}")
    return 0


def _attach_command(options: argparse.Namespace) -> str:
    """Returns the command that shows this engine, with a placeholder for the viewer's own key."""
    command = ["seqtop", "attach", options.bind]
    if options.server_secret_key is not None:
        public = options.server_secret_key.removesuffix("_secret")  # as keygen names the two
        command += ["--server-key", public, "--client-key", "YOURS.key_secret"]
    return shlex.join(command)


def _http_listener(options: argparse.Namespace, engine: LLMEngine, info: EngineInfo) -> HttpServer:
    # Imported only to serve over HTTP, because it takes time.
    from engine_stub.entrypoints.openai.app import ServedModel
    from engine_stub.entrypoints.openai.chat import BUNDLED_STOPS
    from engine_stub.entrypoints.openai.http_server import HttpServer
    from engine_stub.processing.chat_template import ChatTemplate

    path = engine.config.model
    model = ServedModel(
        name=info.model.replace(" ", "-"),
        max_model_len=engine.max_model_len,
        chat_template=ChatTemplate.from_pretrained(path),
        chat_stops=BUNDLED_STOPS if path == DEFAULT_MODEL else (),
        created=int(info.start_time),
    )
    return HttpServer(options.http, engine, model, insecure=options.insecure)


def _stop_signal(*, watch_stdin: bool) -> Callable[[], bool]:
    """Returns a function that tells whether SIGINT, SIGTERM or the end of stdin has occurred."""
    stopped = when_stdin_closes() if watch_stdin else threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return stopped.is_set


def _fail(sentence: str, *, status: int = 1) -> int:
    print(f"engine-stub: {safe_line(sentence)}", file=sys.stderr)
    return status
