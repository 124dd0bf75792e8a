"""Who comes in where rank 0 listens, and who does not."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from mlxgen.errors import MachineError
from mlxgen.machines.channel import Channel
from mlxgen.machines.meeting import Invitation, invite, reach, receive_all

from .pretended import groups

SOON = 10.0
"""Seconds after which a test fails; nothing here takes that long."""


@contextmanager
def reception(
    *ranks: int, timeout: float = SOON
) -> Iterator[tuple[Invitation, Future[dict[int, socket.socket]]]]:
    """Rank 0 as it waits for others."""
    listener, invitation = invite([["127.0.0.1"]])
    with listener, ThreadPoolExecutor(1) as pool:
        yield invitation, pool.submit(receive_all, listener, invitation, ranks, timeout)


def test_strangers_are_dropped() -> None:
    with reception(1) as (invitation, received), ExitStack() as stack:
        address = (invitation.addresses[0], invitation.port)
        said = [b"GET / HTTP/1.1\r\n\r\n" * 10, struct.pack("!i", 20) + bytes(20), b"half"]
        for rank in (0, 2, 2**32 - 1):  # who is not awaited, whatever it knows
            with pytest.raises(OSError):
                reach(invitation, rank, 0)
        strange = []
        for words in [*said, b"", b""]:
            strange.append(stack.enter_context(socket.create_connection(address, SOON)))
            strange[-1].sendall(words)
        with reach(invitation, 1, SOON) as ours, received.result(SOON)[1] as its:
            its.sendall(b"welcome")
            assert ours.recv(7) == b"welcome"
        for each in strange:
            with suppress(ConnectionError):
                assert each.recv(1) == b""


def test_a_rank_does_not_come_in_twice() -> None:
    with reception(1, 2, timeout=0.2) as (invitation, received):
        with reach(invitation, 1, 0), pytest.raises(OSError):
            reach(invitation, 1, 0)
        met = received.result(SOON)
        assert list(met) == [1]
        met[1].close()


def test_a_rank_takes_no_other_program_for_rank_0() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        invitation = Invitation(["127.0.0.1"], listener.getsockname()[1], "secret")
        tried = pool.submit(reach, invitation, 1, 0)
        with listener.accept()[0] as connection:
            connection.sendall(struct.pack("!i", 32) + bytes(32))
            with pytest.raises(OSError, match=r"127\.0\.0\.1 \(another program answers there\)"):
                tried.result(SOON)


def test_addresses_are_tried_in_turn_and_those_that_failed_are_named() -> None:
    with reception(1) as (invitation, received):
        elsewhere = invitation._replace(addresses=["not.a.host.invalid", "127.0.0.1"])
        with pytest.raises(OSError, match=r"127\.0\.0\.1 \(another program answers there\)"):
            reach(elsewhere._replace(secret="another"), 1, 0)
        reach(elsewhere, 1, SOON).close()
        received.result(SOON)[1].close()


def test_ranks_that_do_not_come_are_named() -> None:
    first, second = groups()
    with ThreadPoolExecutor(2) as pool:
        opened = pool.submit(Channel.open, first, timeout=0.1)
        second.exchange(None)
        with pytest.raises(MachineError, match=r"^rank 1 \(host-1\) did not reach rank 0"):
            opened.result(SOON)
