"""Engines that are found in a register, for `seqtop attach`: its options, and their sessions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from seqtop.process.distribution import install_command
from seqtop.text import format as fmt
from seqtop.transport.endpoints import EndpointError, rank_endpoint

if TYPE_CHECKING:
    from seqtop.discovery import Discovery, Found
    from seqtop.live.session import Session
    from seqtop.transport.curve_keys import ViewerKeys

MOST_ENGINES = 128
"""The most engines that are followed: each takes two connections and two threads."""

_NEEDS = {
    "namespace": ("kubernetes",),
    "all_namespaces": ("kubernetes",),
    "context": ("kubernetes",),
    "port": ("kubernetes", "targets"),
}
"""The options that are about some registers only."""


class MissingExtraError(Exception):
    """A package is not installed. The message is one sentence for the user."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name a register."""
    group = parser.add_argument_group(
        "engines that are found", "they come and go on the fleet screen"
    )
    group.add_argument(
        "--kubernetes",
        metavar="SELECTOR",
        help="the engines in the pods with these labels, such as app=vllm",
    )
    group.add_argument(
        "-n", "--namespace", metavar="NAME", help="their namespace (default: the context's)"
    )
    group.add_argument("--all-namespaces", action="store_true", help="look in all namespaces")
    group.add_argument(
        "--context", metavar="NAME", help="the context of the kubeconfig (default: the current one)"
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="the engines in the named actors of a Ray cluster (default: RAY_ADDRESS, or the"
        " cluster of this machine)",
    )
    group.add_argument(
        "--targets",
        type=Path,
        metavar="FILE",
        help="the engines in a file of targets, as Prometheus reads it, JSON or YAML",
    )
    group.add_argument(
        "--local", action="store_true", help="your engines on this machine, and those that start"
    )
    group.add_argument(
        "--port",
        type=_port,
        metavar="PORT",
        help="the port that the found engines publish at, if their pods or targets do not say it",
    )


def _port(text: str) -> int:
    if not (text.isdecimal() and 0 < int(text) < 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to 65534")
    return int(text)


def _named(options: argparse.Namespace) -> list[str]:
    """Returns the registers that the options name."""
    registers = {
        "kubernetes": options.kubernetes is not None,
        "ray": options.ray is not None,
        "targets": options.targets is not None,
        "local": options.local,
    }
    return [name for name, is_named in registers.items() if is_named]


def find_conflict(options: argparse.Namespace) -> str | None:
    """Returns a sentence on options that do not go together, if there are any."""
    registers = _named(options)
    if len(registers) > 1:
        return f"--{registers[0]} and --{registers[1]} exclude each other"
    if registers and options.endpoints:
        return f"--{registers[0]} finds the endpoints: give none"
    if registers == ["local"] and options.ranks > 1:
        return "--local finds each rank by itself: leave --ranks out"
    for option, needed in _NEEDS.items():
        if getattr(options, option) not in (None, False) and not set(registers) & set(needed):
            name = option.replace("_", "-")
            return f"--{name} is for {' and '.join(f'--{register}' for register in needed)}"
    if options.namespace is not None and options.all_namespaces:
        return "--namespace and --all-namespaces exclude each other"
    if options.kubernetes is not None and not options.kubernetes.strip():
        return "--kubernetes needs a label selector, such as app=vllm"
    return None


def discovery_of(options: argparse.Namespace) -> Discovery | None:
    """Returns what follows the register that the options name, if any; not started.

    Raises:
        MissingExtraError: It needs a package that is not installed.
    """
    registers = _named(options)
    if not registers:
        return None
    register = registers[0]
    try:
        return _CREATE[register](options)
    except ImportError as error:
        raise MissingExtraError(
            f"--{register} needs the extra {register}: {install_command(register)}"
        ) from error


def _kubernetes(options: argparse.Namespace) -> Discovery:
    from seqtop.discovery.kubernetes import Kubernetes

    return Kubernetes(
        options.kubernetes,
        namespace=options.namespace,
        all_namespaces=options.all_namespaces,
        context=options.context,
        port=options.port,
    )


def _ray(options: argparse.Namespace) -> Discovery:
    from seqtop.discovery.ray_actors import RayActors

    return RayActors(options.ray or None)


def _targets(options: argparse.Namespace) -> Discovery:
    from seqtop.discovery.targets_file import TargetsFile

    return TargetsFile(options.targets, options.port)


def _local(_: argparse.Namespace) -> Discovery:
    from seqtop.discovery.this_machine import ThisMachine

    return ThisMachine()


_CREATE: dict[str, Callable[[argparse.Namespace], Discovery]] = {
    "kubernetes": _kubernetes,
    "ray": _ray,
    "targets": _targets,
    "local": _local,
}


class FoundSessions:
    """Sessions with the engines that a register lists.

    An engine that is listed no more is lost, and is followed again when it returns under its name.

    Args:
        discovery: Follows the register.
        stack: Closes the sessions.
        num_ranks: The number of data-parallel ranks behind each endpoint.
        keys: Keys for engines that require CurveZMQ authentication.
    """

    def __init__(
        self,
        discovery: Discovery,
        stack: ExitStack,
        *,
        num_ranks: int = 1,
        keys: ViewerKeys | None = None,
    ) -> None:
        from seqtop.live.session import most_sessions

        self.on_change: Callable[[Sequence[Session]], object] = lambda _: None
        """Called with all sessions when there are more."""
        self._discovery, self._stack = discovery, stack
        self._num_ranks, self._keys = num_ranks, keys
        self._most = most_sessions(MOST_ENGINES)
        self._sessions: dict[str, Session] = {}
        self._places: dict[str, str] = {}
        """The endpoints of the engines that are listed now."""
        self._seen: tuple[Found, ...] = ()
        self._problem = ""
        self._told = ""

    def take_new(self) -> Sequence[Session]:
        """Follows what came, went and moved; returns the sessions with engines that are new."""
        found = self._discovery.found
        if found is self._seen:
            return ()
        self._seen = found
        places, names = {}, {}
        self._problem = ""
        num_left, room = 0, self._most - len(self._sessions)
        for key, name, endpoint in self._ranks(found):
            if key in self._sessions or room > 0:
                room -= key not in self._sessions
                places[key], names[key] = endpoint, name
            else:
                num_left += 1
        if num_left:
            self._problem = (
                f"{fmt.plural(num_left, 'engine')} more {'was' if num_left == 1 else 'were'} found"
                f" than the {self._most} that are followed; those that are gone count, until"
                " seqtop starts again"
            )
        new = [self._follow(key, names[key], endpoint) for key, endpoint in places.items()]
        for key in self._sessions.keys() & self._places.keys() - places.keys():
            title = self._discovery.title
            self._sessions[key].leave(f"{title} does not list it any more; waiting for its return")
        self._places = places
        added = [session for session in new if session is not None]
        if added:
            self.on_change([*self._sessions.values()])
        return added

    def take_problem(self) -> str:
        """Returns a sentence on what is wrong with the register, once; empty if nothing is."""
        problem = self._discovery.problem or self._problem
        if problem == self._told:
            return ""
        self._told = problem
        return problem

    def _ranks(self, found: Sequence[Found]) -> Iterator[tuple[str, str, str]]:
        """Yields key, name and endpoint of each rank."""
        for engine in found:
            for rank in range(self._num_ranks):
                suffix = f" dp{rank}" if self._num_ranks > 1 else ""
                try:
                    endpoint = rank_endpoint(engine.endpoint, rank)
                except EndpointError:  # no port is left for that rank
                    continue
                yield engine.key + suffix, engine.name and engine.name + suffix, endpoint

    def _follow(self, key: str, name: str, endpoint: str) -> Session | None:
        """Follows an engine where it is listed; returns a session that is new."""
        import zmq

        from seqtop.live.session import Session

        session = self._sessions.get(key)
        if session is not None:
            if self._places.get(key) != endpoint:
                session.follow(endpoint)
            return None
        session = Session(endpoint, keys=self._keys, is_subscribed=False)
        session.name = name
        try:
            self._stack.enter_context(session)
        except zmq.ZMQError as error:  # a register may have anything in place of a host
            session.close()
            self._problem = f"cannot connect to {endpoint}: {error.strerror}"
            return None
        self._sessions[key] = session
        return session
