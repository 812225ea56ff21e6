"""CurveZMQ keys, which authenticate engines and viewers and encrypt everything between them.

Key files are certificates in the format of `zmq.auth` and czmq: `NAME.key` holds a public key and
may be shared, `NAME.key_secret` holds both halves. Keys have 32 bytes, written as 40 characters in
Z85 (https://rfc.zeromq.org/spec/32/).
"""

from __future__ import annotations

import os
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from zmq.utils import z85

from seqtop.process import files
from seqtop.transport import sockets

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

MAX_CPU_SHARE = 0.02
"""The share of a core that authenticating takes: the engine waits for the interpreter meanwhile."""
MAX_PAUSE = 0.1
"""Seconds that the next handshake waits at most."""
_KEY_BYTES = 32
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_KEY_FILE = 2**16
"""The largest key file that is read, in bytes. A device such as /dev/zero has no end."""


class KeyFileError(ValueError):
    """A key cannot be used or created. The message is one sentence for the user."""


@dataclass(frozen=True)
class ViewerKeys:
    """A viewer's key pair and the public key of the engine, in Z85."""

    server: bytes
    public: bytes
    secret: bytes = field(repr=False)

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Restricts a socket to the holder of the engine's key. Called before it connects."""
        socket.curve_serverkey = self.server
        socket.curve_publickey = self.public
        socket.curve_secretkey = self.secret


@dataclass(frozen=True)
class EngineKeys:
    """An engine's secret key and the public keys of the viewers that it admits, in Z85."""

    secret: bytes = field(repr=False)
    viewers: frozenset[bytes]
    controllers: frozenset[bytes] | None = None
    """The viewers that may submit and abort; `None` for all."""

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Restricts a socket to the viewers' keys. Called before it binds."""
        socket.curve_secretkey = self.secret
        socket.curve_server = True
        # Without an enforced domain, libzmq admits every key while no authenticator runs.
        sockets.require_handshake(socket)
        socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)

    def may_control(self, key: bytes) -> bool:
        """Returns whether the holder of a public key may submit and abort."""
        return self.controllers is None or key in self.controllers

    def admit(self, context: zmq.Context[zmq.Socket[bytes]]) -> ThreadAuthenticator:
        """Starts a thread that authenticates viewers for all sockets of a context."""
        # Imported by engines only, so that viewers start faster.
        from zmq.auth.thread import ThreadAuthenticator

        authenticator = ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_curve_callback(sockets.ZAP_DOMAIN, _AllowList(self.viewers))
        return authenticator


class _AllowList:
    """The callback of `configure_curve_callback`, which runs on the authenticator's thread.

    It rations handshakes by measured time, whoever asks: after each, the thread pauses.
    """

    def __init__(self, keys: frozenset[bytes]) -> None:
        self._keys = keys
        self._used: float | None = None
        """Seconds of CPU that the thread had used after the last handshake."""

    def callback(self, _domain: str, key: bytes) -> bool:
        used = time.thread_time()
        if self._used is not None:
            time.sleep(min((used - self._used) / MAX_CPU_SHARE, MAX_PAUSE))
        self._used = used
        return key in self._keys


def viewer_keys(server_key: str, client_key: str | os.PathLike[str]) -> ViewerKeys:
    """Loads the keys of a viewer.

    Args:
        server_key: The engine's public key: a file or 40 characters in Z85.
        client_key: The viewer's secret key file.

    Raises:
        KeyFileError: A key cannot be read or is not of that kind.
    """
    public, secret = _secret_key(Path(client_key))
    return ViewerKeys(_public_key(server_key), public, secret)


def engine_keys(
    secret_key: str | os.PathLike[str],
    authorized: str | os.PathLike[str],
    controllers: str | os.PathLike[str] | None = None,
) -> EngineKeys:
    """Loads the keys of an engine.

    Args:
        secret_key: The engine's secret key file.
        authorized: The viewers to admit: a public key file, or a directory of `*.key` files.
        controllers: Those of them that may submit and abort, in the same form; `None` for all.

    Raises:
        KeyFileError: A key cannot be read, is not of that kind or may be written by others; no
            viewer would be admitted; or one that may control would not.
    """
    _, secret = _secret_key(Path(secret_key))
    viewers = _public_keys(Path(authorized))
    if controllers is None:
        return EngineKeys(secret, frozenset(viewers))
    may_control = _public_keys(Path(controllers))
    for key, path in may_control.items():
        if key not in viewers:
            raise KeyFileError(
                f"the key in {path} may control this engine, but not watch it: add it to"
                f" {authorized}, too"
            )
    return EngineKeys(secret, frozenset(viewers), frozenset(may_control))


def create_pair(base: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Creates `base.key`, which others may read, and `base.key_secret`, which they may not.

    Raises:
        KeyFileError: One of the files exists already or cannot be written.
    """
    import zmq.auth  # needed with keys only; a start without them is faster

    base = Path(base)
    public, secret = Path(f"{base}.key"), Path(f"{base}.key_secret")
    try:
        with (
            tempfile.TemporaryDirectory(dir=base.parent, prefix=".seqtop-") as directory,
            files.writing(secret, overwrite=False) as secret_file,
            files.writing(public, overwrite=False, mode=0o644) as public_file,
        ):
            names = zmq.auth.create_certificates(directory, base.name)
            for name, file in zip(names, (public_file, secret_file), strict=True):
                file.write(Path(name).read_bytes())
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise KeyFileError(
                f"{error.filename} exists already; a key is never overwritten"
            ) from error
        raise KeyFileError(f"{base}.key cannot be written: {error.strerror}") from error
    return public, secret


def _public_key(given: str) -> bytes:
    if len(given) == 40 and not Path(given).exists():
        return _checked(given.encode(), given)
    return _load(Path(given))[0]


def _public_keys(path: Path) -> dict[bytes, Path]:
    """Returns the keys in a file or a directory, and the file of each."""
    if not path.is_dir():
        return {_load(path)[0]: path}
    _require_own(path)
    keys = {_load(file)[0]: file for file in sorted(path.glob("*.key"))}
    if not keys:
        raise KeyFileError(f"{path} holds no *.key files, so nobody could connect")
    return keys


def _secret_key(path: Path) -> tuple[bytes, bytes]:
    public, secret = _load(path)
    if secret is None:
        raise KeyFileError(f"{path} holds no secret key; give the file that ends in .key_secret")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise KeyFileError(f"{path} can be read by others: chmod 600 {path}")
    if zmq.curve_public(secret) != public:
        raise KeyFileError(f"the two keys in {path} are not a pair")
    return public, secret


def _load(path: Path) -> tuple[bytes, bytes | None]:
    if path.exists() and not (path.is_file() and path.stat().st_size <= _MAX_KEY_FILE):
        raise KeyFileError(
            f"{path} cannot be used as a key: it is no regular file of at most"
            f" {_MAX_KEY_FILE} bytes"
        )
    import zmq.auth  # as above

    try:
        public, secret = zmq.auth.load_certificate(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no key file"
        if not path.exists():
            reason = "there is no such file"
        raise KeyFileError(f"{path} cannot be used as a key: {reason}") from error
    _require_own(path)
    return _checked(public, path), None if secret is None else _checked(secret, path)


def _require_own(path: Path) -> None:
    """Raises `KeyFileError` if another user than this one and root may change a file or directory.

    Who may write to a directory above may also replace what is in it, unless it is sticky as `/tmp`
    is. OpenSSH looks at them, too, before it trusts a list of keys (`StrictModes`).
    """
    own = path.stat()
    if own.st_uid not in (0, os.geteuid()):
        raise KeyFileError(f"{path} cannot be used for keys: it belongs to another user")
    if own.st_mode & _WRITABLE_BY_OTHERS:
        raise KeyFileError(f"{path} can be written by others: chmod go-w {path}")
    for folder in {*path.absolute().parents, *path.resolve().parents}:  # those of a link, too
        above = folder.stat()
        if above.st_mode & _WRITABLE_BY_OTHERS and not above.st_mode & stat.S_ISVTX:
            raise KeyFileError(f"{path} can be replaced by others: chmod go-w {folder}")


def _checked(key: bytes, where: str | Path) -> bytes:
    try:
        plain = z85.decode(key) if len(key) == 40 else b""
    except Exception as error:  # z85 raises struct.error, KeyError and others
        raise KeyFileError(f"{where} holds no key of 40 characters in Z85") from error
    if len(plain) != _KEY_BYTES:
        raise KeyFileError(f"{where} holds no key of 40 characters in Z85")
    return key
