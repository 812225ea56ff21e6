"""Doors that only keys open, over real sockets."""

import contextlib
import itertools
import os
import re
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
import zmq.auth

from seqtop.live.session import Session
from seqtop.sequence import SamplingParams
from seqtop.state import EngineState
from seqtop.transport import control_client, curve_keys
from seqtop.transport.connection import ConnectionState, ControlError, UnreachableError
from seqtop.transport.curve_keys import KeyFileError, ViewerKeys
from seqtop.transport.endpoints import EndpointError, check_bind, snapshot_endpoint
from seqtop.transport.handshake import HandshakeMonitor
from seqtop.transport.publisher import MessagePublisher
from seqtop.wire import codec
from seqtop.wire.messages import Abort, SnapshotRequest
from tests.support.events import arrival, engine_info
from tests.support.waiting import SECONDS, wait_until

NAMES = ("engine", "controller", "onlooker", "unlisted")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key pair for each of `NAMES`; controller and onlooker are let in, one may control."""
    directory = tmp_path_factory.mktemp("keys")
    for name in NAMES:
        curve_keys.create_pair(directory / name)
    for folder, names in (
        ("viewers", ("onlooker", "controller")),
        ("controllers", ("controller",)),
    ):
        (directory / folder).mkdir()
        for name in names:
            (directory / folder / f"{name}.key").write_text((directory / f"{name}.key").read_text())
    return directory


@pytest.fixture
def engine(endpoint: str, place: Path) -> Iterator[MessagePublisher]:
    """Publishes one request, to two of the four."""
    own = curve_keys.engine_keys(
        place / "engine.key_secret", place / "viewers", place / "controllers"
    )
    info = engine_info(control=True)
    with MessagePublisher(endpoint, info, EngineState(), curve_keys=own) as running:
        running.publish(arrival(1))
        yield running


def of(place: Path, name: str, server: str = "engine") -> ViewerKeys:
    return curve_keys.viewer_keys(str(place / f"{server}.key"), place / f"{name}.key_secret")


def refusal(endpoint: str, own: ViewerKeys | None) -> str:
    """Returns the reason that a viewer gets which is not let in; it must have seen nothing."""
    with Session(endpoint, keys=own) as session:
        with pytest.raises(UnreachableError) as error:
            session.await_engine(SECONDS)
        assert session.connection.state is ConnectionState.REFUSED
        assert session.connection.num_messages == session.connection.num_bytes == 0
        assert session.state == EngineState(max_finished=session.state.max_finished)
    return str(error.value)


def test_a_viewer_on_the_list_sees_snapshot_and_stream(
    engine: MessagePublisher, place: Path
) -> None:
    with Session(engine.endpoint, keys=of(place, "onlooker")) as session:
        session.await_engine(SECONDS)
        assert "req-1" in session.state.requests
        engine.publish(arrival(2))
        wait_until(lambda: "req-2" in session.state.requests)


def test_control_belongs_to_those_who_were_given_it(engine: MessagePublisher, place: Path) -> None:
    with Session(engine.endpoint, keys=of(place, "onlooker")) as session:
        session.await_engine(SECONDS)
        with pytest.raises(ControlError, match="may view this engine, but not control it"):
            session.submit("Once", SamplingParams())
        assert engine.commands() == []
    with Session(engine.endpoint, keys=of(place, "controller")) as session:
        asking = threading.Thread(target=session.abort, args=("req-1",))
        asking.start()
        (pending,) = engine.commands(timeout=SECONDS)
        pending.accept("req-1")
        asking.join()


def test_command_of_a_viewer_that_was_refused_already_does_not_wait_for_ever(
    engine: MessagePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """libzmq removes the connection, so that there is nothing to send by."""
    sockets: list[zmq.Socket[bytes]] = []

    class NoKeys(ViewerKeys):
        def secure(self, socket: zmq.Socket[bytes]) -> None:
            sockets.append(socket)

    class LateCodec:
        def encode(self, command: Abort) -> bytes:
            wait_until(lambda: not sockets[0].poll(0, zmq.POLLOUT))
            return codec.encode(command)

    monkeypatch.setattr(control_client, "codec", LateCodec())
    keys = NoKeys(b"", b"", b"")
    with pytest.raises(ControlError, match=r"did not answer within 0\.05 s"):
        control_client.request(
            engine.endpoint, Abort(request_id="req-1"), curve_keys=keys, timeout=0.05
        )


def test_stranger_is_refused_by_name_and_sees_nothing(
    engine: MessagePublisher, place: Path
) -> None:
    sentence = refusal(engine.endpoint, of(place, "unlisted"))
    assert "refused this viewer's key" in sentence
    assert "--authorized-clients" in sentence


def test_summaries_are_for_viewers_on_the_list(engine: MessagePublisher, place: Path) -> None:
    with Session(engine.endpoint, keys=of(place, "onlooker"), is_subscribed=False) as session:
        wait_until(lambda: session.summary is not None)
        assert session.connection.state is ConnectionState.LIVE
    for own in (None, of(place, "unlisted")):
        with Session(engine.endpoint, keys=own, is_subscribed=False) as session:
            assert session.wait_for(ConnectionState.REFUSED, timeout=SECONDS)
            assert session.summary is None
            assert session.connection.num_bytes == 0


def test_viewer_without_keys_is_told_that_they_are_expected(engine: MessagePublisher) -> None:
    assert "expects --server-key" in refusal(engine.endpoint, None)


def test_engine_that_is_another_is_found_out(engine: MessagePublisher, place: Path) -> None:
    own = of(place, "onlooker", server="unlisted")
    assert "does not hold the key of --server-key" in refusal(engine.endpoint, own)


def test_engine_without_keys_is_said_to_have_none(endpoint: str, place: Path) -> None:
    with MessagePublisher(endpoint, engine_info(), EngineState()):
        sentence = refusal(endpoint, of(place, "onlooker"))
    assert "uses no keys" in sentence


@pytest.mark.parametrize("name", ["unlisted", None])
def test_neither_socket_gives_the_uninvited_one_byte(
    engine: MessagePublisher, place: Path, name: str | None
) -> None:
    with zmq.Context() as context:
        live, questions = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        for socket in (live, questions):
            socket.linger = 0
            if name is not None:
                of(place, name).secure(socket)
        watches = [HandshakeMonitor(client, "there", has_keys=True) for client in (live, questions)]
        live.subscribe(b"")
        live.connect(engine.endpoint)
        questions.connect(snapshot_endpoint(engine.endpoint))
        with contextlib.suppress(zmq.Again):  # refused before it could ask
            questions.send(codec.encode(SnapshotRequest()), zmq.DONTWAIT)
        for watch in watches:
            wait_until(watch.refusal)
            watch.close()
        # And whoever is invited, and asks after them, is served.
        with Session(engine.endpoint, keys=of(place, "onlooker")) as session:
            session.await_engine(SECONDS)
        assert not live.poll(0)
        assert not questions.poll(0)
        live.close()
        questions.close()


def test_handshakes_are_rationed_by_measured_time(
    endpoint: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = itertools.chain([1.0, 1.001, 1.002, 2.0], itertools.count(2.001, 0.001))
    pauses: list[float] = []

    class Clock:
        def thread_time(self) -> float:
            return next(used)

        def sleep(self, seconds: float) -> None:
            pauses.append(seconds)

    monkeypatch.setattr(curve_keys, "time", Clock())
    own = curve_keys.engine_keys(place / "engine.key_secret", place / "viewers")
    with MessagePublisher(endpoint, engine_info(), EngineState(), curve_keys=own):
        while len(pauses) < 3:
            refusal(endpoint, of(place, "unlisted"))
    assert pauses[:3] == pytest.approx([0.05, 0.05, curve_keys.MAX_PAUSE])
    assert 0.001 / pauses[0] == pytest.approx(curve_keys.MAX_CPU_SHARE)


def test_refused_viewer_gets_in_once_it_is_let(
    endpoint: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqtop.transport.subscriber._RECONNECT_SECONDS", 0.05)
    secret = place / "engine.key_secret"
    with Session(endpoint, keys=of(place, "unlisted")) as session:
        strict = curve_keys.engine_keys(secret, place / "onlooker.key")
        with MessagePublisher(endpoint, engine_info(), EngineState(), curve_keys=strict):
            assert session.wait_for(ConnectionState.REFUSED, timeout=SECONDS)
        lenient = curve_keys.engine_keys(secret, place / "unlisted.key")
        with MessagePublisher(endpoint, engine_info(), EngineState(), curve_keys=lenient):
            assert session.wait_for(ConnectionState.LIVE, timeout=SECONDS)


def test_everything_is_encrypted(endpoint: str, place: Path) -> None:
    """A relay between the two sees no word of it."""
    own = curve_keys.engine_keys(place / "engine.key_secret", place / "viewers")
    far = f"{endpoint}.far"
    seen = bytearray()
    with MessagePublisher(far, engine_info(), EngineState(), curve_keys=own) as engine:
        engine.publish(arrival(1))
        with (
            Relay(endpoint, far, seen),
            Relay(snapshot_endpoint(endpoint), snapshot_endpoint(far), seen),
            Session(endpoint, keys=of(place, "onlooker")) as session,
        ):
            session.await_engine(SECONDS)
            engine.publish(arrival(2))
            wait_until(lambda: "req-2" in session.state.requests)
    assert len(seen) > 1_000
    for word in (b"req-", b"a b c", b"seqtop", b"Snapshot", b"RequestArrived"):
        assert word not in seen


def test_keys_open_the_door_to_other_machines() -> None:
    endpoint = "tcp://0.0.0.0:5557"
    with pytest.raises(EndpointError, match="seqtop keygen"):
        check_bind(endpoint, insecure=False)
    assert check_bind(endpoint, insecure=False, has_keys=True) == endpoint


def test_key_files_are_those_of_other_tools(tmp_path: Path) -> None:
    public, secret = curve_keys.create_pair(tmp_path / "mine")
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    halves = zmq.auth.load_certificate(secret)
    assert zmq.auth.load_certificate(public) == (halves[0], None)
    assert halves[1] is not None
    assert zmq.curve_public(halves[1]) == halves[0]
    assert halves[1] not in public.read_bytes()
    with pytest.raises(KeyFileError, match="exists already"):
        curve_keys.create_pair(tmp_path / "mine")
    assert zmq.auth.load_certificate(secret) == halves


def test_no_half_of_a_pair_is_left_where_the_other_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "mine.key").write_text("in the way")
    with pytest.raises(KeyFileError, match=r"mine\.key exists already"):
        curve_keys.create_pair(tmp_path / "mine")
    assert not (tmp_path / "mine.key_secret").exists()
    with pytest.raises(KeyFileError, match="No such file"):
        curve_keys.create_pair(tmp_path / "nowhere" / "mine")


def test_engine_key_may_be_given_as_such(place: Path) -> None:
    public, _ = zmq.auth.load_certificate(place / "engine.key")
    own = curve_keys.viewer_keys(public.decode(), place / "onlooker.key_secret")
    assert own == of(place, "onlooker")
    assert "secret=" not in repr(own)


def test_keys_that_cannot_be_are_named(place: Path, tmp_path: Path) -> None:
    def is_said(words: str, server: str, client: Path) -> None:
        with pytest.raises(KeyFileError, match=words):
            curve_keys.viewer_keys(server, client)

    engine, onlooker = str(place / "engine.key"), place / "onlooker.key_secret"
    is_said("there is no such file", str(tmp_path / "none"), onlooker)
    is_said("ends in .key_secret", engine, place / "onlooker.key")
    is_said("it is no key file", __file__, onlooker)
    is_said("Z85", "~" * 40, onlooker)
    torn = tmp_path / "torn.key"
    torn.write_text('curve\n    public-key = "short"\n')
    is_said("torn.key holds no key", str(torn), onlooker)
    for name, mode in (("open", 0o644), ("mixed", 0o600)):
        copy = tmp_path / f"{name}.key_secret"
        other, _ = zmq.auth.load_certificate(place / "engine.key")
        mine, _ = zmq.auth.load_certificate(onlooker)
        text = onlooker.read_bytes()
        copy.write_bytes(text.replace(mine, other) if name == "mixed" else text)
        copy.chmod(mode)
    is_said("chmod 600", engine, tmp_path / "open.key_secret")
    is_said("not a pair", engine, tmp_path / "mixed.key_secret")
    (tmp_path / "empty").mkdir()
    with pytest.raises(KeyFileError, match="nobody could connect"):
        curve_keys.engine_keys(place / "engine.key_secret", tmp_path / "empty")


def test_a_client_that_may_control_must_be_allowed_to_watch(place: Path, tmp_path: Path) -> None:
    sentence = re.escape(
        f"the key in {place / 'unlisted.key'} may control this engine, but not watch it: add it to"
        f" {place / 'viewers'}, too"
    )
    with pytest.raises(KeyFileError, match=f"^{sentence}$"):
        curve_keys.engine_keys(
            place / "engine.key_secret", place / "viewers", place / "unlisted.key"
        )


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("writable", ["list", "key", "folder of a key", "folder above"])
def test_a_folder_that_others_may_write_is_no_list_of_keys(
    place: Path, tmp_path: Path, writable: str, mode: int
) -> None:
    above = tmp_path / "above"
    viewers = above / "keys" / "viewers"
    viewers.mkdir(parents=True)
    key = viewers / "onlooker.key"
    key.write_bytes((place / "onlooker.key").read_bytes())
    named = {"key": key, "folder above": above}.get(writable, viewers)
    named.chmod(mode)
    given = key if writable == "folder of a key" else viewers

    def load() -> None:
        curve_keys.engine_keys(place / "engine.key_secret", given)

    if writable in ("folder of a key", "folder above") and mode & 0o1000:
        load()  # as in /tmp: nobody else may replace it
        return
    with pytest.raises(KeyFileError, match=rf"by others: chmod go-w {re.escape(str(named))}$"):
        load()
    named.chmod(0o700)
    load()


def test_a_link_that_others_may_replace_is_no_list_of_keys(place: Path, tmp_path: Path) -> None:
    link = tmp_path / "open" / "viewers"
    link.parent.mkdir()
    link.symlink_to(place / "viewers")
    curve_keys.engine_keys(place / "engine.key_secret", link)
    link.parent.chmod(0o777)
    with pytest.raises(KeyFileError, match="can be replaced by others"):
        curve_keys.engine_keys(place / "engine.key_secret", link)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_keys_of_another_user_are_not_used(place: Path, tmp_path: Path) -> None:
    key = tmp_path / "onlooker.key"
    key.write_bytes((place / "onlooker.key").read_bytes())
    os.chown(key, 65534, 65534)
    with pytest.raises(KeyFileError, match="belongs to another user"):
        curve_keys.engine_keys(place / "engine.key_secret", key)


class Relay:
    """Passes bytes between two IPC sockets and keeps a copy; a context manager."""

    def __init__(self, near: str, far: str, seen: bytearray) -> None:

        self._far = far.removeprefix("ipc://")
        self._seen = seen
        self._open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(near.removeprefix("ipc://"))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "Relay":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:

        for client in (self._listener, *self._open):
            client.shutdown(socket.SHUT_RDWR)
            client.close()
        self._thread.join(SECONDS)

    def _accept(self) -> None:

        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._far)
            self._open += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass, args=(source, sink), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                self._seen += data
                sink.sendall(data)
        except OSError:
            return


def test_files_without_end_are_no_keys(place: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge.key_secret"
    with huge.open("wb") as file:
        file.truncate(2**16 + 1)
    for path in (Path("/dev/zero"), huge):
        with pytest.raises(KeyFileError, match="regular file of at most 65536 bytes"):
            curve_keys.engine_keys(path, place)


def test_a_revoked_key_is_admitted_until_the_engine_is_restarted(
    endpoint: str, place: Path, tmp_path: Path
) -> None:
    """The list of viewers is read once, when the engine starts."""
    for name in ("onlooker", "controller"):
        (tmp_path / f"{name}.key").write_text((place / f"{name}.key").read_text())
    secret = place / "engine.key_secret"
    own = curve_keys.engine_keys(secret, tmp_path)
    with MessagePublisher(endpoint, engine_info(), EngineState(), curve_keys=own):
        (tmp_path / "onlooker.key").unlink()
        with Session(endpoint, keys=of(place, "onlooker")) as session:
            session.await_engine(SECONDS)
    own = curve_keys.engine_keys(secret, tmp_path)
    with MessagePublisher(endpoint, engine_info(), EngineState(), curve_keys=own):
        assert "refused this viewer's key" in refusal(endpoint, of(place, "onlooker"))
        with Session(endpoint, keys=of(place, "controller")) as session:
            session.await_engine(SECONDS)


def test_handshakes_that_do_not_end_hinder_nobody(engine: MessagePublisher, place: Path) -> None:
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(15) + b"\x00" + bytes(31)
    halfway = []
    for number in range(200):
        client = socket.socket(socket.AF_UNIX)
        address = engine.endpoint if number % 2 else snapshot_endpoint(engine.endpoint)
        client.connect(address.removeprefix("ipc://"))
        client.sendall(greeting[: number % 64 + 1])
        halfway.append(client)
    with Session(engine.endpoint, keys=of(place, "onlooker")) as session:
        session.await_engine(SECONDS)
        engine.publish(arrival(2))
        wait_until(lambda: "req-2" in session.state.requests)
    for client in halfway:
        client.close()
    assert engine.num_dropped == 0
