"""Ranks that are processes of their own, and what becomes of them."""

from __future__ import annotations

import os
import signal

import pytest

from .ranks import Ended, run, started

JOINS = """
from mlxgen.machines.group import Group
group = Group.join()
values = group.exchange({"rank": group.rank, "long": "\u00fc" * 1000 * group.rank})
assert [value["rank"] for value in values] == [0, 1, 2]
assert [len(value["long"]) for value in values] == [0, 1000, 2000]
print(group.rank, group.size, group.leads, group.backend, group.hosts)
"""


LEAVES = """
import os, time
from mlxgen.errors import MachineError
from mlxgen.machines.group import Group
group = Group.join()
if group.rank == 1:
    os._exit(0)
try:
    while True:
        assert group.exchange("a value") == ["a value"] * 2
except MachineError as error:
    print(error)
"""


def conversation(size: int, patience: float, number: int, signalled: int) -> list[Ended]:
    """Run ranks that talk until one of them gets a signal."""
    with started(["-m", "tests.machines.conversing", str(patience)], size) as ranks:
        ranks.wait_for("started")
        os.kill(ranks.processes[signalled].pid, number)
        if number == signal.SIGSTOP:
            others = [rank for rank in range(size) if rank != signalled]
            for rank in others:
                ranks.processes[rank].wait(10)
            os.kill(ranks.processes[signalled].pid, signal.SIGCONT)
        return ranks.wait(10)


@pytest.mark.slow
def test_ranks_meet_and_exchange_values() -> None:
    hosts = ("127.0.0.1",) * 3
    for rank, ended in enumerate(run(["-c", JOINS], 3)):
        assert ended.out.strip() == f"{rank} 3 {rank == 0} ring {hosts}", ended.err


@pytest.mark.slow
def test_a_rank_that_leaves_while_values_are_exchanged_is_noticed() -> None:
    ended, _ = run(["-c", LEAVES])
    assert ended.out.startswith("another rank ended at the start"), ended.err


def test_a_rank_that_is_killed_ends_all_others_with_its_name() -> None:
    first, second, third = conversation(3, 60, signal.SIGKILL, 2)
    assert third.code == -signal.SIGKILL
    assert (first.code, second.code) == (3, 3)
    assert "rank 2 (127.0.0.1) has ended" in first.out
    assert "rank 2 (127.0.0.1) has ended" in second.out


@pytest.mark.slow
def test_a_rank_that_is_stopped_ends_all_including_itself() -> None:
    first, second = conversation(2, 0.6, signal.SIGSTOP, 1)
    assert (first.code, second.code) == (3, 3)
    assert "rank 1 (127.0.0.1) has not answered for 0.6 s" in first.out
    assert "rank 1 (127.0.0.1) has not answered for 0.6 s" in second.out


@pytest.mark.slow
def test_a_leader_that_is_killed_ends_the_others() -> None:
    _, second, third = conversation(3, 60, signal.SIGKILL, 0)
    assert (second.code, third.code) == (3, 3)
    assert "rank 0 (127.0.0.1) has ended" in second.out


@pytest.mark.slow
def test_a_leader_that_is_stopped_ends_the_others() -> None:
    _, second = conversation(2, 0.2, signal.SIGSTOP, 0)
    assert second.code == 3
    assert "rank 0 (127.0.0.1) has not answered for 1 s" in second.out
