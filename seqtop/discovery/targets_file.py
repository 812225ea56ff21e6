"""A file of targets, as Prometheus reads it (`file_sd_configs`)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from seqtop.discovery import DiscoveryError, Found, PolledDiscovery
from seqtop.process import files
from seqtop.process.distribution import install_command
from seqtop.transport.endpoints import EndpointError, check, with_port, with_scheme

_MAX_FILE_BYTES = 4 * 2**20


class _Group(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class TargetsFile(PolledDiscovery):
    """Finds the engines that a file lists. Its changes count within a second.

    Args:
        path: The file, JSON or YAML: a list of groups with `targets` and `labels`. The label
            `instance` of a group with one target is its name.
        port: The port that engines publish at, in place of those in the file.
    """

    def __init__(self, path: Path, port: int | None = None) -> None:
        super().__init__(str(path))
        self._path, self._port = path, port
        self._content = b""
        self._found: list[Found] = []

    def explain_none(self) -> str:
        """Returns a sentence on why no engine was found."""
        return f"{self._path} lists no targets"

    def _find(self) -> Iterable[Found]:
        try:
            content = files.read(self._path, _MAX_FILE_BYTES)
        except OSError as error:
            raise DiscoveryError(f"cannot read {self._path}: {error.strerror or error}") from error
        if content != self._content:
            self._found = [*self._parse(content)]
            self._content = content
        return self._found

    def _parse(self, content: bytes) -> Iterable[Found]:
        for group in self._decode(content):
            name = group.labels.get("instance", "") if len(group.targets) == 1 else ""
            for target in group.targets:
                try:
                    endpoint = check(with_scheme(target))
                    yield Found(name, with_port(endpoint, self._port))
                except EndpointError as error:
                    raise DiscoveryError(f"{self._path}: {error}") from error

    def _decode(self, content: bytes) -> list[_Group]:
        is_yaml = self._path.suffix in {".yaml", ".yml"}
        decode = msgspec.yaml.decode if is_yaml else msgspec.json.decode
        try:
            return decode(content, type=list[_Group])
        except ImportError as error:
            raise DiscoveryError(
                f"reading YAML needs PyYAML: {install_command('kubernetes')}, or write JSON"
            ) from error
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise DiscoveryError(f"{self._path} is not a file of targets: {error}") from error
