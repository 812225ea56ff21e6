"""The process that renders a chat template, which comes from an untrusted model directory.

Jinja's sandbox limits what a template can reach, but not its time and memory: loops may be nested,
and ``"x" * 10**12`` is evaluated when a template is compiled. This process has limits on both, and
ends when a template exceeds them.

It reads a line of JSON from its standard input for each task, and writes one for each result. The
first task has the template, the others have the variables of a prompt.
"""

from __future__ import annotations

import contextlib
import json
import math
import resource
import signal
import sys
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from seqtop.text.format import shortened

MAX_SECONDS = 2
"""The most CPU time of compiling a template, and of rendering a prompt, in seconds."""

MAX_MEMORY = 2**29
"""The address space of the process, in bytes."""

MAX_PROMPT = 2**24
"""The longest prompt, in characters."""

MAX_ERROR = 1_000
"""The longest error, in characters. A template makes them as long as it likes."""


class _GenerationBlock(Extension):
    """The ``{% generation %}`` block, which marks text to train on and has no effect here."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own interface

    def parse(self, parser: Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: Any, **options: Any) -> str:
    """Dumps JSON without escaping for HTML, unlike Jinja's own filter."""
    return json.dumps(value, **({"ensure_ascii": False} | options))


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _compile(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refuse, "strftime_now": _now}
    return environment.from_string(source)


def _render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    prompt = template.render(variables)
    if len(prompt) > MAX_PROMPT:
        raise ValueError(f"the prompt is longer than {MAX_PROMPT} characters")
    return prompt


def _limit_time() -> None:
    """Allows `MAX_SECONDS` from now on; then the kernel ends the process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(used.ru_utime + used.ru_stime) + MAX_SECONDS
    _limit(resource.RLIMIT_CPU, seconds)


def _limit(kind: int, value: int) -> None:
    """Sets the soft limit, within the hard one."""
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    with contextlib.suppress(ValueError, OSError):  # macOS does not limit the address space
        resource.setrlimit(kind, (value, hard))


def _main() -> None:
    # Ctrl-C reaches all processes of a terminal; this one ends with its input.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(resource.RLIMIT_AS, MAX_MEMORY)
    _limit(resource.RLIMIT_CORE, 0)
    template: jinja2.Template | None = None
    for line in sys.stdin.buffer:
        _limit_time()
        result: dict[str, str] = {}
        try:
            task = json.loads(line)
            if template is None:
                template = _compile(task)
            else:
                result["prompt"] = _render(template, task)
        except jinja2.TemplateSyntaxError as error:
            result["error"] = f"cannot be read: {error.message}, line {error.lineno}"
        except jinja2.TemplateError as error:
            result["error"] = f"refuses this: {error}"
        except MemoryError:
            result["error"] = f"takes more than {MAX_MEMORY} bytes of memory"
        except Exception as error:  # noqa: BLE001 - a template can raise any exception of Python
            result["error"] = f"fails on this: {type(error).__name__}: {error}"
        if (message := result.get("error")) is not None:
            result["error"] = shortened(message, MAX_ERROR)
        sys.stdout.write(json.dumps(result) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()
