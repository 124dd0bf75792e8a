"""Messages between the leader and the other ranks, beside the sums of the model.

Owns the connections, and the verdict whether all ranks are still there. Must never know what is
in a message. Invariants: a message comes whole, once and in order, or the group is lost; a group
that is lost stays so, and every rank that can be reached is told why.

Why not sums of bytes through MLX: its collectives run in the order of their stream (on two streams
at a time they mix on the same sockets), so a message comes when the pass that runs is done: 94 ms
late behind a pass of 95 ms, between two processes on the ring. By the channel it took 0.4 ms
meanwhile, and 0.05 ms in a pause. Nor would a sum notice a peer that hangs.
"""

from __future__ import annotations

import atexit
import logging
import selectors
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import cast

from ..errors import MachineError
from .group import Group
from .link import UNHEARD, Frame, GarbageError, Link
from .meeting import Invitation, invite, reach, receive_all

BEAT = 1.0
"""Seconds between two signs of life."""

PATIENCE = 6.0
"""Seconds of silence after which a rank is lost.

A rank beats whatever it evaluates, as MLX lets go of the interpreter's lock meanwhile. Ethernet
that is plugged in again is back after 2 to 4 s.
"""

AT_LENGTH = 5
"""How many times as long a rank may be silent that does something ``at_length``, as rank 0 always
does: a tokenizer that is read, a grammar or a regular expression of a hook may hold the
interpreter's lock. A machine that is gone is noticed sooner, by the system."""

BUSY = 120.0
"""Seconds that a rank may take for one message, unless it does something ``at_length``. A prefill
chunk takes some; what takes longer hangs, although the rank beats."""

OPENING = 30.0
"""Seconds for all ranks to reach the leader."""

_LEAVING = 1.0  # seconds to send the last words
_PROGRESS = struct.Struct("!QQ?")  # messages that came, and were carried out; whether at length

_LOG = logging.getLogger(__name__)


class _Kind(IntEnum):
    MESSAGE = 1
    REPLY = 2
    BEAT = 3
    GOODBYE = 4
    FAILED = 5  # with a sentence: the group is lost, or the sender is about to end


class _Peer:
    """Another rank, as this one knows it."""

    def __init__(self, rank: int, name: str, link: Link) -> None:
        now = time.monotonic()
        self.rank, self.name, self.link = rank, name, link
        self.heard = now  # when anything came last
        self.open = True
        self.came = self.done = 0  # messages, as in _PROGRESS
        self.at_length = True  # until it says otherwise
        self.progressed = now  # when it was last seen to get on, or to have nothing to do

    @property
    def at_work(self) -> bool:
        """Whether a message came that is not carried out."""
        return self.came > self.done

    def note(self, came: int, done: int, at_length: bool) -> None:
        """Take how far it says that it is."""
        if done > self.done or self.at_length or not self.at_work:
            self.progressed = time.monotonic()
        self.came, self.done, self.at_length = came, done, at_length


class Channel:
    """The leader's end of the connections to all others, or another rank's to the leader.

    Messages go from the leader to all others, replies from each of them to the leader. ``send``
    and ``receive`` are for one thread at a time; everything else may be called by any.
    """

    def __init__(
        self,
        name: str,
        peers: Mapping[int, tuple[str, socket.socket]],
        *,
        leads: bool,
        patience: float = PATIENCE,
        busy: float = BUSY,
    ) -> None:
        self.messages = 0
        """Messages that were sent, or received."""
        self.sent_bytes = 0
        """Bytes of messages that were sent, to all ranks together."""
        self._name, self._leads = name, leads
        self._peers = {rank: _Peer(rank, name, Link(each)) for rank, (name, each) in peers.items()}
        self._patience, self._busy = patience, busy
        self._beat = min(BEAT, patience / 4)
        self._changed = threading.Condition()  # guards what follows
        self._inbox: deque[bytes] = deque()
        self._came = self._taken = self._done = 0
        self._lost: MachineError | None = None
        self._over = False  # goodbye was said
        self._left = False  # and heard by whoever carries out messages
        self._at_length = leads
        self._calls: list[Callable[[MachineError], None]] = []
        self._heard: Callable[[int, bytes], None] = lambda rank, reply: None
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="mlxgen machines", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    @classmethod
    def open(
        cls,
        group: Group,
        *,
        patience: float = PATIENCE,
        busy: float = BUSY,
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
                    f" {invitation.port}: tried {error}; let Python accept connections in the"
                    " firewall of that machine, and check the network between them"
                ) from error
            peers = {0: (group.name(0), connection)}
            return cls(group.name(group.rank), peers, leads=False, patience=patience, busy=busy)
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
                f" within {timeout:g} s; let Python accept connections in the firewall of this"
                " machine, and check the network between them"
            )
        named = {rank: (group.name(rank), met[rank]) for rank in others}
        return cls(group.name(0), named, leads=True, patience=patience, busy=busy)

    @property
    def lost(self) -> MachineError | None:
        """Why the group is lost, if it is."""
        return self._lost

    def wait_lost(self, timeout: float) -> MachineError | None:
        """The same, but wait for it: a collective that fails may be faster than the news."""
        with self._changed:
            self._changed.wait_for(lambda: self._lost is not None, timeout)
            return self._lost

    def on_loss(self, call: Callable[[MachineError], None]) -> None:
        """Have ``call`` called once when the group is lost, by the channel's own thread; at once
        if it is lost already."""
        with self._changed:
            lost = self._lost
            if lost is None:
                self._calls.append(call)
        if lost is not None:
            call(lost)

    def send(self, message: bytes) -> None:
        """Send a message from the leader to all others; it does not wait for them.

        Raises ``MachineError`` if the group is lost.
        """
        self._check()
        for peer in self._peers.values():
            peer.link.send(_Kind.MESSAGE, message)
        self.messages += 1
        self.sent_bytes += len(message) * len(self._peers)
        self._attend()

    def receive(self, timeout: float | None = None) -> bytes | None:
        """The leader's next message, or ``None`` when it has said goodbye.

        Whoever calls this has carried out what it received before. Raises ``MachineError`` if the
        group is lost, and ``TimeoutError``.
        """
        with self._changed:
            self._done = self._taken
            self._changed.wait_for(lambda: self._lost or self._inbox or self._over, timeout)
            self._check()
            if self._inbox:
                self._taken += 1
                self.messages += 1
                return self._inbox.popleft()
            if not self._over:
                raise TimeoutError
            self._left = True
            self._changed.notify_all()
            return None

    @contextmanager
    def at_length(self) -> Iterator[None]:
        """A context for what may take as long as it likes on this rank, such as a download."""
        before, self._at_length = self._at_length, True
        self._say_progress()
        try:
            yield
        finally:
            self._at_length = before
            self._say_progress()

    def reply(self, message: bytes) -> None:
        """Send something to the leader."""
        self._check()
        for peer in self._peers.values():
            peer.link.send(_Kind.REPLY, message)
        self._attend()

    def on_reply(self, call: Callable[[int, bytes], None]) -> None:
        """Have ``call`` called with a rank and each of its replies from now on, by the channel's
        own thread, which it must not keep waiting."""
        self._heard = call

    def fail(self, sentence: str) -> None:
        """Tell the others that this rank ends, and why; they end, too."""
        self._leave(_Kind.FAILED, f"{self._name} failed: {sentence}")

    def close(self) -> None:
        """Say goodbye, if this is the leader, and close the connections. Doing so again, or after
        a loss, does nothing more."""
        self._leave(_Kind.GOODBYE if self._leads else None)

    def _leave(self, kind: _Kind | None, sentence: str = "") -> None:
        """Say the last words, unless they were said, and let the thread end."""
        with self._changed:
            if kind is not None and not self._over and self._lost is None:
                for peer in self._peers.values():
                    peer.link.send(kind, sentence.encode())
            self._over = self._left = True
            self._changed.notify_all()
        atexit.unregister(self.close)
        self._wake_up()
        if threading.current_thread() is not self._thread:
            self._thread.join(2 * _LEAVING)

    def _say_progress(self) -> None:
        for peer in self._peers.values():
            said = _PROGRESS.pack(self._came, self._done, self._at_length)
            peer.link.send(_Kind.BEAT, said)

    def _check(self) -> None:
        """Raise if nothing can be sent any more."""
        if self._lost is not None:
            raise MachineError(*self._lost.args)
        if self._leads and self._over:
            raise MachineError("the other ranks were told to end; start all of them again")

    def _attend(self) -> None:
        """Have the thread send what the sockets did not take."""
        if any(peer.link.waiting or peer.link.broken for peer in self._peers.values()):
            self._wake_up()

    def _wake_up(self) -> None:
        with suppress(OSError):  # if the thread has ended
            self._wake.send(b"\0")

    # What follows is done by the channel's thread.

    def _run(self) -> None:
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._woken, selectors.EVENT_READ)
                for peer in self._peers.values():
                    selector.register(peer.link.socket, selectors.EVENT_READ, peer)
                self._converse(selector)
                self._say_last(selector)
        except Exception as error:
            self._lose(f"the connections between the ranks failed: {error!r}")
            raise
        finally:
            for peer in self._peers.values():
                peer.link.close()
            self._wake.close()
            self._woken.close()

    def _converse(self, selector: selectors.BaseSelector) -> None:
        """Receive and beat until the group is lost or both sides have come to an end."""
        due = turn = time.monotonic()
        while self._lost is None and not (self._over and self._left):
            if turn >= due:
                due = turn + self._beat
                self._say_progress()
            self._attend_to(selector, due - turn)
            now = time.monotonic()
            # The time in which this process did not run is nobody's silence
            away = max(0.0, now - turn - 2 * self._beat)
            turn = now
            for peer in self._peers.values():
                peer.heard += away
                peer.progressed += away
                self._judge(peer, now)

    def _judge(self, peer: _Peer, now: float) -> None:
        patience = self._patience * (AT_LENGTH if peer.at_length else 1)
        if self._over:
            if not self._left and now - peer.heard > self._patience:
                self._lose(f"{peer.name} has ended while another rank was still at work")
        elif now - peer.heard > patience:
            self._lose(_silence(peer, patience))
        elif peer.at_work and not peer.at_length and now - peer.progressed > self._busy:
            self._lose(
                f"{peer.name} has not finished a message for {self._busy:g} s; see what it printed"
            )

    def _say_last(self, selector: selectors.BaseSelector) -> None:
        """Send what is left, and wait for the others to close.

        A connection that is closed with something unread may lose what was sent.
        """
        until = time.monotonic() + _LEAVING
        while (left := until - time.monotonic()) > 0 and any(
            peer.open for peer in self._peers.values()
        ):
            for peer in self._peers.values():
                if not peer.link.waiting:
                    peer.link.finish()
            self._attend_to(selector, left)

    def _attend_to(self, selector: selectors.BaseSelector, timeout: float) -> None:
        """Send and receive what the sockets take and give, within ``timeout`` seconds."""
        for peer in self._peers.values():
            events = selectors.EVENT_READ | selectors.EVENT_WRITE * peer.link.waiting
            if peer.open and selector.get_key(peer.link.socket).events != events:
                selector.modify(peer.link.socket, events, peer)
        for key, events in selector.select(max(0.0, timeout)):
            if key.data is None:
                self._woken.recv(4096)
                continue
            peer = cast(_Peer, key.data)
            if events & selectors.EVENT_WRITE:
                peer.link.flush()
            if events & selectors.EVENT_READ:
                self._read(peer, selector)
        for peer in self._peers.values():
            if peer.open and peer.link.broken:
                self._read(peer, selector)

    def _read(self, peer: _Peer, selector: selectors.BaseSelector) -> None:
        try:
            frames = peer.link.receive()
            for frame in frames:
                self._take(peer, frame)
            peer.heard = time.monotonic()
        except (EOFError, OSError) as error:
            selector.unregister(peer.link.socket)
            peer.open = False
            ended = isinstance(error, EOFError | ConnectionError)  # else the system gave it up
            if not self._over:
                self._lose(f"{peer.name} has ended" if ended else _silence(peer, UNHEARD))
        except (GarbageError, ValueError, struct.error):
            self._lose(f"{peer.name} sent something else than a message of mlxgen")

    def _take(self, peer: _Peer, frame: Frame) -> None:
        kind = _Kind(frame.kind)
        if kind is _Kind.FAILED:
            self._lose(frame.body.decode(errors="replace"))
        elif kind is _Kind.BEAT:
            peer.note(*_PROGRESS.unpack(frame.body))
        elif kind is _Kind.REPLY:
            self._heard(peer.rank, frame.body)
        else:
            with self._changed:
                if kind is _Kind.MESSAGE:
                    self._inbox.append(frame.body)
                    self._came += 1
                else:
                    self._over = True
                    peer.link.finish()
                self._changed.notify_all()

    def _lose(self, sentence: str) -> None:
        """Tell everybody, here and on the other ranks, that the group is lost; once."""
        with self._changed:
            if self._lost is not None or (self._over and self._left):
                return
            lost = self._lost = MachineError(sentence)
            calls, self._calls = self._calls, []
            self._changed.notify_all()
        for peer in self._peers.values():
            peer.link.send(_Kind.FAILED, sentence.encode())
        for call in calls:
            try:
                call(lost)
            except Exception:
                _LOG.exception("what was to be done about a lost machine failed")


def _silence(peer: _Peer, seconds: float) -> str:
    return f"{peer.name} has not answered for {seconds:g} s; check its cable and whether it sleeps"
