"""Tells alerts to commands and web servers, without waiting for them."""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import signal
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from seqtop.alerts.alert import Alert

TIMEOUT = 10.0
"""Seconds that a command or a web server has for one alert."""
MAX_WAITING: Final = 100
"""Alerts that wait for one command or web server."""
_SECONDS_BETWEEN_LINES: Final = 60.0
"""Seconds from one line of the log about a failure to the next."""

Log = Callable[[str], object]
"""Receives a sentence for the user."""


class TargetError(ValueError):
    """A command or an address that cannot be told anything; the message is one sentence."""


class _Target:
    """One command or web server, with a thread and a queue of its own: one that hangs delays none.

    Args:
        name: The name in the log.
        tell: Tells one alert, and raises what goes wrong.
        log: Receives sentences about failures.
    """

    def __init__(self, name: str, tell: Callable[[Alert], None], log: Log) -> None:
        self.num_told = self.num_failed = self.num_dropped = 0
        self._name, self._tell, self._log = name, tell, log
        self._queue: queue.Queue[Alert | None] = queue.Queue(MAX_WAITING)
        self._logged_at = -_SECONDS_BETWEEN_LINES
        self._thread = threading.Thread(target=self._run, name="seqtop-alerts", daemon=True)
        self._thread.start()

    def put(self, alert: Alert) -> None:
        """Queues an alert, or counts it as dropped."""
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self.num_dropped += 1

    def close(self, deadline: float) -> None:
        """Waits until all is told, up to a time of the monotonic clock."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=max(deadline - time.monotonic(), 0.0))
        self._thread.join(max(deadline - time.monotonic(), 0.0))

    def _run(self) -> None:
        while (alert := self._queue.get()) is not None:
            try:
                self._tell(alert)
                self.num_told += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the next one is told
                self.num_failed += 1
                self._report(f"{type(error).__name__}: {error}")

    def _report(self, problem: str) -> None:
        now = time.monotonic()
        if now - self._logged_at >= _SECONDS_BETWEEN_LINES:
            self._logged_at = now
            failed = f"{self.num_failed} so far" if self.num_failed > 1 else "the first one"
            self._log(f"{self._name} was not told of an alert ({failed}): {problem}")


class Notifier:
    """Commands and web servers that are told of alerts. A context manager, which tells what waits.

    Args:
        commands: Command lines, split as a shell does, but run without one. A command has the alert
            as JSON on its standard input, and its main fields in variables of the environment.
        webhooks: HTTP addresses, which receive the same JSON by POST.
        log: Receives sentences about failures, one a minute for each.

    Raises:
        TargetError: A command or an address is malformed.
    """

    def __init__(self, commands: Sequence[str], webhooks: Sequence[str], log: Log) -> None:
        told = [(f"--run {command}", _command(command)) for command in commands]
        told += [(f"--webhook {url}", _webhook(url)) for url in webhooks]
        self._targets = [_Target(name, tell, log) for name, tell in told]

    @property
    def num_told(self) -> int:
        """Alerts that were told, counted for each target."""
        return sum(target.num_told for target in self._targets)

    @property
    def num_failed(self) -> int:
        """Alerts that could not be told."""
        return sum(target.num_failed for target in self._targets)

    @property
    def num_dropped(self) -> int:
        """Alerts for which there was no room, as earlier ones waited."""
        return sum(target.num_dropped for target in self._targets)

    def send(self, alert: Alert) -> None:
        """Tells all targets, later. Never waits."""
        for target in self._targets:
            target.put(alert)

    def __enter__(self) -> Notifier:
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + TIMEOUT + 1.0
        for target in self._targets:
            target.close(deadline)


def _command(line: str) -> Callable[[Alert], None]:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise TargetError(f"the command {line!r} cannot be split into words: {error}") from error
    if not words:
        raise TargetError("a command is needed, such as notify-send")

    def tell(alert: Alert) -> None:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | _variables(alert),
            start_new_session=True,  # so that what it starts ends with it
        )
        try:
            process.communicate(msgspec.json.encode(alert), TIMEOUT)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise TimeoutError(f"it was ended after {TIMEOUT:g} s") from error
            raise
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}")

    return tell


def _variables(alert: Alert) -> dict[str, str]:
    """Returns the main fields of an alert as variables of the environment."""
    fields = {
        "STATE": alert.state,
        "CAUSE": alert.cause,
        "MESSAGE": alert.message,
        "ENGINE": alert.engine_id,
        "ENDPOINT": alert.endpoint,
        "VERDICT": alert.verdict,
        "RECORDING": alert.recording or "",
    }
    # A variable cannot have a zero byte.
    return {f"SEQTOP_ALERT_{name}": text.replace("\0", " ") for name, text in fields.items()}


def _webhook(url: str) -> Callable[[Alert], None]:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise TargetError(f"{url!r} is no address of a web server, such as http://HOST:PORT/PATH")

    def tell(alert: Alert) -> None:
        request = urllib.request.Request(
            url,
            msgspec.json.encode(alert),
            {"Content-Type": "application/json", "User-Agent": "seqtop"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT):
            pass

    return tell
