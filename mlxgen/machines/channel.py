"""Messages from the leader to the other ranks, separate from the model's collectives.

Owns the connections, and the verdict whether all ranks are alive. Must never know what is in a
message. Invariants: a message arrives whole, once and in order, or the group is lost; a lost group
stays lost, and every rank that can be reached is told why.

Why not through MLX: its collectives run in the order of their stream (on two streams at a time they
mix on the same sockets), so a message would arrive after the running pass: 94 ms late behind a pass
of 95 ms, between two processes on the ring. Through the channel it took 0.4 ms during a pass, and
0.05 ms without one. Nor would a collective notice a peer that hangs.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from multiprocessing.connection import Connection, wait

from ..errors import MachineError
from .group import Group
from .meeting import Invitation, invite, limit_waits, reach, receive_all

BEAT = 1.0
"""Seconds between two heartbeats."""

PATIENCE = 15.0
"""Seconds of silence after which a rank is lost.

A rank sends heartbeats during an evaluation, too, as MLX releases the GIL; a tokenizer that is
loaded, a grammar or a regular expression of a hook may hold it. Ethernet that is plugged in again
is back after 2 to 4 s.
"""

STEP = 180.0
"""Seconds after which a pass that does not end loses the group, even if every rank sends
heartbeats: a collective may hang with the network or the GPU."""

OPENING = 30.0
"""Seconds for all ranks to reach the leader."""

_LEAVING = 1.0  # seconds to send the last words
_ADVICE = "let Python accept connections in the firewall of rank 0's machine, and check the network"
_LARGEST = 1 << 30  # bytes of a message; a sender of more is not a rank

_LOG = logging.getLogger(__name__)


class _Kind(IntEnum):
    """The first byte of everything that is sent."""

    MESSAGE = 1
    BEAT = 2  # a heartbeat
    GOODBYE = 3
    FAILED = 4  # with a sentence: why the group is lost, or why the sender ends


class _Peer:
    """Another rank, and the connection to it."""

    def __init__(self, name: str, link: socket.socket, patience: float) -> None:
        link.settimeout(None)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        limit_waits(link, socket.SO_SNDTIMEO, patience)  # for a rank that does not read
        limit_waits(link, socket.SO_RCVTIMEO, patience)  # or stops in the middle of a message
        self.name = name
        self.connection = Connection(os.dup(link.fileno()))
        self._socket = link
        self._sending = threading.Lock()
        self.heard = time.monotonic()  # when anything last arrived

    def send(self, kind: _Kind, body: bytes = b"", *, wait: float = -1) -> None:
        """Send something after all earlier sends, unless that means to wait for ``wait`` seconds. A
        failure is noticed where the connection is read."""
        if self._sending.acquire(timeout=wait):
            try:
                with suppress(OSError):
                    self.connection.send_bytes(bytes([kind]) + body)
            finally:
                self._sending.release()

    def finish(self) -> None:
        """Say that nothing more will be sent."""
        with suppress(OSError):  # if the other rank closed first
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Close the connection; pending reads and sends fail."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Channel:
    """The leader's connections to all others, or another rank's connection to the leader.

    Messages go from the leader to all others. ``send`` and ``receive`` are for one thread at a
    time; any thread may call the rest. The channel's own thread reads, beats and judges.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[int, tuple[str, socket.socket]],
        *,
        leads: bool,
        patience: float = PATIENCE,
    ) -> None:
        self._name, self._leads = name, leads
        self._peers = [_Peer(name, link, patience) for name, link in peers.values()]
        self._patience = patience
        self._changed = threading.Condition()  # guards the fields below
        self._inbox: deque[bytes] = deque()
        self._lost: MachineError | None = None
        self._over = False  # goodbye was said
        self._left = False  # and ``receive`` has returned it, or this end was closed
        self._steps: dict[object, float] = {}  # when each wait for a pass began
        self._calls: list[Callable[[MachineError], None]] = []
        self._thread = threading.Thread(target=self._run, name="mlxgen machines", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        group: Group,
        *,
        patience: float = PATIENCE,
        timeout: float = OPENING,
    ) -> Channel:
        """Connect all ranks of the group: collective.

        Raises ``MachineError`` if not all of them can be reached within ``timeout`` seconds.
        """
        if not group.leads:
            invitation = Invitation(*group.exchange(None)[0])
            try:
                connection = reach(invitation, group.rank, timeout)
            except OSError as error:
                raise MachineError(
                    f"{group.name(group.rank)} cannot reach {group.name(0)} on port"
                    f" {invitation.port}: tried {error}; {_ADVICE}"
                ) from error
            peers = {0: (group.name(0), connection)}
            return cls(group.name(group.rank), peers, leads=False, patience=patience)
        listener, invitation = invite(group.addresses)
        with listener:
            group.exchange(list(invitation))
            others = range(1, group.size)
            met = receive_all(listener, invitation, others, timeout)
        missing = [group.name(rank) for rank in others if rank not in met]
        if missing:
            for connection in met.values():
                connection.close()
            raise MachineError(
                f"{' and '.join(missing)} did not reach {group.name(0)} on port {invitation.port}"
                f" within {timeout:g} s; {_ADVICE}"
            )
        named = {rank: (group.name(rank), met[rank]) for rank in others}
        return cls(group.name(0), named, leads=True, patience=patience)

    @property
    def lost(self) -> MachineError | None:
        """Why the group is lost, if it is."""
        return self._lost

    def wait_lost(self, timeout: float) -> MachineError | None:
        """The same, but wait for it: a collective may fail before the news of the loss arrives."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, timeout)
            return self._lost

    def on_loss(self, call: Callable[[MachineError], None]) -> None:
        """Call ``call`` once, in the channel's thread, when the group is lost; at once if it is
        already."""
        with self._changed:
            lost = self._lost
            if lost is None:
                self._calls.append(call)
        if lost is not None:
            call(lost)

    def send(self, message: bytes) -> None:
        """Send a message from the leader to all others.

        It blocks only if a rank has not read for long. Raises ``MachineError`` if the group is
        lost.
        """
        self._check()
        self._say(_Kind.MESSAGE, message)

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The leader's next message, or ``None`` when it has said goodbye.

        Raises ``MachineError`` if the group is lost, and ``TimeoutError``.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._lost or self._inbox or self._over, timeout)
            self._check()
            if self._inbox:
                return self._inbox.popleft()
            if not self._over:
                raise TimeoutError
            self._left = True
            self._changed.notify_all()
            return None

    @contextmanager
    def step(self) -> Iterator[None]:
        """A context for waiting for a pass of all ranks; after ``STEP`` s the group is lost."""
        key = object()
        self._steps[key] = time.monotonic()
        try:
            yield
        finally:
            del self._steps[key]

    def fail(self, sentence: str) -> None:
        """Tell the others that this rank ends, and why; they end, too."""
        self._leave(_Kind.FAILED, f"{self._name} failed: {sentence}")

    def close(self) -> None:
        """Say goodbye, if this is the leader, and close the connections. A further call, or one
        after a loss, does nothing more."""
        self._leave(_Kind.GOODBYE if self._leads else None)

    def _leave(self, kind: _Kind | None, sentence: str = "") -> None:
        """Send the last words, unless they were sent, and let the threads end.

        Closing a connection with unread data may lose what was sent: so the others close first, if
        they do so in time.
        """
        with self._changed:
            says = kind is not None and not self._over and self._lost is None
            self._over = self._left = True
            self._changed.notify_all()
        if says:
            assert kind is not None
            self._say(kind, sentence.encode())
        atexit.unregister(self.close)
        for peer in self._peers:
            peer.finish()
        waits = self._thread is not threading.current_thread()
        if waits:
            self._thread.join(_LEAVING)
        for peer in self._peers:
            peer.close()
        if waits:
            self._thread.join(_LEAVING)

    def _say(self, kind: _Kind, body: bytes = b"") -> None:
        for peer in self._peers:
            peer.send(kind, body)

    def _check(self) -> None:
        """Raise if nothing can be sent any more."""
        if self._lost is not None:
            raise MachineError(*self._lost.args)
        if self._leads and self._over:
            raise MachineError("the other ranks were told to end; start all of them again")

    # The methods below run in the channel's thread.

    def _run(self) -> None:
        """Read, beat and judge, until the group is lost or both sides have ended."""
        try:
            pause = min(BEAT, self._patience / 4)
            peers = {peer.connection: peer for peer in self._peers}
            due = time.monotonic()
            while self._lost is None and (peers or not self._left):
                left = max(0.0, due - time.monotonic())
                if not peers:
                    with self._changed:
                        self._changed.wait_for(lambda: self._left, left)
                for link in wait(list(peers), left) if peers else ():
                    assert isinstance(link, Connection)
                    if not self._hear(peers[link]):
                        del peers[link]
                late = time.monotonic() - due
                if late < 0:
                    continue
                due += late + pause
                for peer in self._peers:
                    peer.send(_Kind.BEAT, wait=0)  # a send in progress is a sign of life, too
                    peer.heard += max(0.0, late - pause)  # if this process was suspended
                    self._judge(peer)
        except Exception as error:
            self._lose(f"the connections between the ranks failed: {error!r}")
            raise

    def _judge(self, peer: _Peer) -> None:
        now = time.monotonic()
        patience = self._patience
        if self._over:
            if not self._left and now - peer.heard > patience:
                self._lose(f"{peer.name} has ended while another rank was still at work")
        elif now - peer.heard > patience:
            self._lose(
                f"{peer.name} has not answered for {patience:g} s; check its cable and whether it "
                "sleeps"
            )
        elif self._steps and now - min(self._steps.copy().values(), default=now) > STEP:
            self._lose(
                f"a pass has not ended for {STEP:g} s, though all machines answer; look for one "
                "whose GPU or network hangs, and start all ranks again"
            )

    def _hear(self, peer: _Peer) -> bool:
        """Read what a peer has sent; False at the end of its connection."""
        try:
            data = peer.connection.recv_bytes(_LARGEST)
            kind, body = _Kind(data[0] if data else 0), data[1:]
        except (EOFError, ConnectionError):
            if not self._over:
                self._lose(f"{peer.name} has ended")
            return False
        except (OSError, ValueError):
            if not self._over:
                self._lose(f"{peer.name} sent something else than a message of mlxgen")
            return False
        peer.heard = time.monotonic()
        if kind is _Kind.FAILED:
            self._lose(body.decode(errors="replace"))
        elif kind is not _Kind.BEAT:
            with self._changed:
                if kind is _Kind.MESSAGE:
                    self._inbox.append(body)
                else:
                    self._over = True
                self._changed.notify_all()
            if self._over:
                peer.finish()
        return True

    def _lose(self, sentence: str) -> None:
        """Declare the group lost, once: here and on the other ranks."""
        with self._changed:
            if self._lost is not None or (self._over and self._left):
                return
            lost = self._lost = MachineError(sentence)
            calls, self._calls = self._calls, []
            self._changed.notify_all()
        for peer in self._peers:
            peer.send(_Kind.FAILED, sentence.encode(), wait=_LEAVING)
        for call in calls:
            try:
                call(lost)
            except Exception:
                _LOG.exception("what was to be done about a lost machine failed")
