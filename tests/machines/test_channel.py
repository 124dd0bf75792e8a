"""Messages between ranks, and what becomes of them when one is gone."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from typing import Any

import pytest

from mlxgen.errors import MachineError
from mlxgen.machines.channel import Channel

from .pretended import channels

SOON = 10.0
"""Seconds after which a test fails; nothing here takes that long."""


@contextmanager
def alone(*, leads: bool = True, **options: Any) -> Iterator[tuple[Channel, socket.socket]]:
    """The channel of rank 0, or of rank 1, and the socket of the other one."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        other = socket.create_connection(listener.getsockname(), timeout=SOON)
        mine, _ = listener.accept()
    names = ["rank 0 (host-0)", "rank 1 (host-1)"]
    with other:
        channel = Channel(names[not leads], {leads: (names[leads], mine)}, leads=leads, **options)
        try:
            yield channel, other
        finally:
            other.close()
            channel.close()


def framed(kind: int, body: bytes = b"") -> bytes:
    """What a rank sends, as ``multiprocessing.connection`` frames it."""
    return struct.pack("!iB", 1 + len(body), kind) + body


def lost(channel: Channel) -> str:
    error = channel.wait_lost(SOON)
    assert error is not None
    return str(error)


def test_messages_come_in_order_and_whole() -> None:
    sent = [b"", b"first", bytes(5_000_000), *(b"%d" % number for number in range(100))]
    with channels(3) as (first, *others):
        for message in sent:
            first.send(message)
        for other in others:
            assert [other.receive(SOON) for _ in sent] == sent


def test_a_goodbye_comes_after_the_messages_before_it_and_nobody_waits_for_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mlxgen.machines.channel._LEAVING", 3 * SOON)
    began = time.monotonic()
    with channels() as (first, second):
        first.send(b"last")
        first.close()
        first.close()
        assert time.monotonic() < began + SOON
        assert [second.receive(SOON), second.receive(SOON)] == [b"last", None]
        assert first.lost is None and second.lost is None
        with pytest.raises(MachineError, match="were told to end"):
            first.send(b"more")


@pytest.mark.parametrize(
    ("who", "why"), [(0, "no memory is left"), (1, "the weights cannot be read"), (1, None)]
)
def test_whoever_fails_or_ends_is_named_to_all_others(who: int, why: str | None) -> None:
    heard: list[MachineError] = []
    said = "has ended" if why is None else f"failed: {why}"
    expected = f"rank {who} (host-{who}) {said}"
    with channels(3) as opened:
        others = [channel for channel in opened if channel is not opened[who]]
        others[0].on_loss(heard.append)
        opened[who].close() if why is None else opened[who].fail(why)
        for channel in others:
            assert lost(channel) == expected
            with pytest.raises(MachineError, match=said):
                channel.receive(SOON)
        others[0].on_loss(heard.append)
        if who:
            with pytest.raises(MachineError, match=said):
                opened[0].send(b"a message")
    assert list(map(str, heard)) == [expected] * 2


SILENT = "has not answered for 0.1 s; check its cable"
STRANGE = "sent something else than a message of mlxgen"


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (framed(2), SILENT),
        (b"GET / HTTP/1.1\r\n\r\n", STRANGE),
        (struct.pack("!i", 2**31 - 1), STRANGE),
        (framed(99), STRANGE),
        (struct.pack("!i", 0), STRANGE),
    ],
)
def test_a_rank_that_is_silent_or_says_what_none_would_is_lost(sent: bytes, said: str) -> None:
    with alone(patience=0.1) as (channel, other):
        other.sendall(sent)
        assert lost(channel).startswith(f"rank 1 (host-1) {said}")


def test_a_rank_that_did_not_run_for_a_while_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    naps = [1.0]

    def late(links: Any, timeout: float) -> Any:
        if not naps:
            return wait(links, timeout)
        time.sleep(naps.pop())
        return []

    monkeypatch.setattr("mlxgen.machines.channel.wait", late)
    with alone(patience=0.6) as (channel, other):
        for _ in range(25):
            other.sendall(framed(2))
            assert channel.wait_lost(0.05) is None


@pytest.mark.slow
def test_ranks_that_wait_for_nothing_stay_together() -> None:
    with channels(3, patience=0.5) as opened:
        assert opened[0].wait_lost(1.5) is None
        assert [channel.lost for channel in opened] == [None] * 3


def test_a_leader_that_is_gone_ends_a_rank_that_hangs_in_a_message() -> None:
    with channels(patience=0.3) as (first, second):
        first.send(b"a step")
        assert second.receive(SOON) == b"a step"
        first.close()
        assert lost(second) == "rank 0 (host-0) has ended while another rank was still at work"


def test_half_a_frame_is_waited_for() -> None:
    with alone() as (channel, other):
        frame = framed(1, b"message")
        for byte in frame[:-1]:
            other.sendall(bytes([byte]))
        with pytest.raises(TimeoutError):
            channel.receive(0.02)
        other.sendall(frame[-1:])
        assert channel.receive(SOON) == b"message"


def test_a_pass_that_has_no_end_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlxgen.machines.channel.STEP", 0.1)
    with channels(patience=0.4) as (first, second):
        with first.step(), second.step():
            assert lost(first).startswith("a pass has not ended for 0.1 s, though all machines")
        assert lost(second) == str(first.lost)
    monkeypatch.setattr("mlxgen.machines.channel.STEP", 1.0)
    with channels(patience=0.4) as (first, _):
        for _ in range(4):
            with first.step():
                assert first.wait_lost(0.3) is None


def test_a_rank_that_does_not_read_holds_nobody_up() -> None:
    """It is lost, and whoever sends to it goes on then."""
    with alone(patience=0.1) as (channel, _):
        with pytest.raises(MachineError, match="has not answered"):
            while True:
                channel.send(bytes(5_000_000))
        assert lost(channel).startswith("rank 1 (host-1) has not answered")


def test_nothing_is_left_of_a_channel_that_is_closed() -> None:
    before = threading.active_count()
    with channels(3):
        assert threading.active_count() > before
    assert threading.active_count() == before
