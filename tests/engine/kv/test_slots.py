"""Sequences side by side: each must see exactly what it would see alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.kv.alone import Alone
from mlxgen.engine.kv.groups import WASTE, Slots
from mlxgen.engine.kv.places import SLACK
from mlxgen.engine.kv.slots import Group, Slot
from mlxgen.errors import StateError
from tests.fakes.architectures import VOCAB, cache_kinds

from ...effort import tries

QUANTISED = ["quantised", "quantised later"]
PADDED = ["plain", *QUANTISED, "rotating", "sliding window"]
BATCHED = [*PADDED, "recurrent", "hybrid", "list of caches"]
ALONE = ["concatenating", "chunked"]


def alone(model: nn.Module, make: Callable[[], list[Any]], history: list[int]) -> mx.array:
    """Logits [vocab] behind a history that was run at once."""
    return Alone(make).forward(model, mx.array([history]))[0, -1]


def same(got: mx.array, expected: mx.array, atol: float = 2e-4) -> None:
    np.testing.assert_allclose(np.array(got), np.array(expected), atol=atol, rtol=2e-3)


class Rows:
    """Histories and their slots, moved in step and compared with sequences alone."""

    def __init__(self, kind: str) -> None:
        self.model, self.make = cache_kinds()[kind]()
        self.slots = Group(self.make)
        # What nearly lies between two steps may be rounded to the other one
        self.atol = 1e-2 if kind in QUANTISED else 2e-4
        self.rows: list[tuple[list[int], Slot]] = []

    def join(self, history: list[int]) -> None:
        member = self.slots.add(len(history))
        self.slots.run(self.model, mx.array([history]), [len(history)], member.index)
        self.rows.append((list(history), member))

    def step(self, tokens: list[int]) -> None:
        """One token for each row, in the order of the slots."""
        rows = sorted(self.rows, key=lambda row: row[1].index)
        for history, member in rows:
            self.feed(history, member)
        for (history, _), token in zip(rows, tokens, strict=True):
            history.append(token)
        last = mx.array([[history[-1]] for history, _ in rows])
        logits = self.slots.run(self.model, last, [1] * len(rows))
        for row, (history, _) in zip(logits, rows, strict=True):
            same(row[-1], alone(self.model, self.make, history), self.atol)
        self.slots.check_integrity()

    def run(self, runs: dict[int, list[int]]) -> None:
        """Several tokens for some of the rows, in one pass over these and those between them."""
        chosen = {self.rows[place][1].index: (self.rows[place], run) for place, run in runs.items()}
        first, most = min(chosen), max(map(len, runs.values()))
        given = [chosen[i][1] if i in chosen else [] for i in range(first, max(chosen) + 1)]
        tokens = mx.array([[*run, *[5] * (most - len(run))] for run in given])
        logits = self.slots.run(self.model, tokens, list(map(len, given)), first)
        for index, ((history, member), run) in chosen.items():
            history += run
            assert member.length == len(history)
            expected = alone(self.model, self.make, history)
            same(logits[index - first, len(run) - 1], expected, self.atol)
        for history, member in self.rows:
            assert member.length == len(history)

    def feed(self, history: list[int], member: Slot) -> None:
        """Run what a rewind of a recurrent row left pending."""
        missing = history[member.length :]
        if not missing:
            return
        self.slots.run(self.model, mx.array([missing]), [len(missing)], member.index)

    def rewind(self, place: int, count: int) -> None:
        history, member = self.rows[place]
        to = max(1, len(history) - count)
        member.go_back(to)
        assert member.length <= to
        del history[to:]
        self.feed(history, member)

    def leave(self, place: int) -> None:
        _, member = self.rows.pop(place)
        self.slots.leave(member)


@pytest.mark.parametrize("kind", BATCHED)
def test_a_row_between_others_that_run_keeps_what_it_holds(kind: str) -> None:
    rows = Rows(kind)
    for start, length in ((1, 3), (30, 17), (60, 5), (8, 2)):
        rows.join([start] * length)
    rows.run({0: [4], 3: [5]})
    rows.step([1, 2, 3, 4])
    rows.run({0: [4, 6, 7], 2: [5, 1, 2]})
    rows.run({1: [9]})
    rows.step([1, 2, 3, 4])
    rows.rewind(1, 1)  # of a recurrent row: what the pass before the last one took back
    rows.step([5, 6, 7, 8])


@pytest.mark.parametrize("kind", PADDED)
@pytest.mark.parametrize("places", [(0, 1), (1, 2), (2, 0), (0, 1, 2)])
def test_runs_of_some_rows_leave_the_others_as_they_are(kind: str, places: tuple[int, ...]) -> None:
    rows = Rows(kind)
    for start, length in ((1, 3), (30, 17), (60, 5)):
        rows.join([start] * length)
    rows.step([7, 8, 9])
    rows.run({place: list(range(10, 12 + 5 * place)) for place in places})
    rows.step([1, 2, 3])
    rows.rewind(places[0], 4)
    rows.step([4, 5, 6])


@pytest.mark.slow
def test_padding_counts_as_having_been_where_a_ring_forgets() -> None:
    rows = Rows("rotating")
    for start in (1, 30):
        rows.join([start] * 20)
    for token in range(SLACK - 16):
        rows.step([token % VOCAB, 1])
    rows.run({0: [5], 1: list(range(40))})
    rows.rewind(0, SLACK - 20)
    assert rows.rows[0][1].length == len(rows.rows[0][0])
    rows.step([1, 2])


@pytest.mark.parametrize("kind", BATCHED)
def test_the_last_token_of_one_row_can_always_be_taken_back(kind: str) -> None:
    rows = Rows(kind)
    rows.join([1] * 15)
    rows.join([2] * 4)
    for _ in range(3):
        rows.step([3, 4])
        history, member = rows.rows[1]
        member.go_back(len(history) - 1)
        assert member.length == len(history) - 1
        history.pop()


def test_a_ring_gives_back_what_its_slack_holds_and_says_where_it_cannot() -> None:
    rows = Rows("sliding window")
    rows.join([5] * 10)
    for start in range(0, 600, 60):
        history, member = rows.rows[0]
        run = [(start + i) % VOCAB for i in range(60)]
        history += run
        rows.slots.run(rows.model, mx.array([run]), [60], member.index)
    rows.rewind(0, SLACK)
    assert rows.rows[0][1].length == len(rows.rows[0][0])
    rows.step([3])
    _, member = rows.rows[0]
    member.go_back(20)
    assert member.length == 0


@pytest.mark.parametrize("kind", BATCHED)
def test_a_copy_goes_on_by_itself_and_leaves_the_slot_as_it_is(kind: str) -> None:
    rows = Rows(kind)
    rows.join([1] * 15)
    rows.join([2] * 4)
    for token in range(5):
        rows.step([token, token])
    rows.rows += [(list(history), member.fork()) for history, member in rows.rows]
    rows.step([11, 12, 13, 14])
    rows.rewind(2, 1)
    rows.step([3, 4, 5, 6])


@pytest.mark.parametrize("kind", BATCHED)
def test_a_row_that_moves_before_its_first_token_begins_with_nothing(kind: str) -> None:
    rows = Rows(kind)
    rows.join([1] * 15)
    rows.join([2] * 4)
    waiting = rows.slots.add(5)
    rows.leave(0)  # the last one takes its place
    assert waiting.index == 0
    rows.slots.run(rows.model, mx.array([[7, 8, 9]]), [3], waiting.index)
    rows.rows.append(([7, 8, 9], waiting))
    rows.step([3, 4])


@pytest.mark.parametrize("kind", BATCHED)
def test_a_row_that_goes_back_to_nothing_begins_again_in_its_slot(kind: str) -> None:
    rows = Rows(kind)
    rows.join([1] * 15)
    rows.join([2] * 4)
    rows.step([3, 4])
    history, member = rows.rows[0]
    member.go_back(0)
    assert member.length == 0
    history[:] = [9] * 11
    rows.feed(history, member)
    rows.step([5, 6])


@pytest.mark.parametrize("length", [SLACK, SLACK + 1, 3 * SLACK])
@pytest.mark.parametrize("held", [0, 5, SLACK + 30])
def test_a_run_that_is_longer_than_a_ring_sees_what_it_would_alone(held: int, length: int) -> None:
    rows = Rows("rotating")
    rows.join([1, 2, 3])
    rows.join([i % 50 for i in range(held)] or [7])
    rows.run({1: [(3 * i) % VOCAB for i in range(length)]})
    rows.step([4, 5])
    rows.rewind(1, 2)
    rows.step([6, 7])


def test_sequences_of_another_length_get_a_group_of_their_own() -> None:
    _, make = cache_kinds()["plain"]()
    slots = Slots(make)
    short = [slots.open(100) for _ in range(3)]
    long = slots.open(100_000)
    assert {slot.group for slot in short} == {slots.groups[0]} and long.group is slots.groups[1]
    assert slots.open(60_000).group is long.group and slots.open(300).group is short[0].group
    long.group.clear()
    assert slots.open(90_000).group is long.group  # it is used again
    assert len(slots) == 5 and WASTE == 2


@pytest.mark.parametrize("kind", ALONE)
def test_caches_without_a_counterpart_are_known_before(kind: str) -> None:
    _, make = cache_kinds()[kind]()
    with pytest.raises(StateError, match="run each alone"):
        Slots(make)


@pytest.mark.parametrize("kind", BATCHED)
@settings(max_examples=tries(6))
@given(st.data())
def test_rows_that_come_go_and_go_back_are_what_they_would_be_alone(
    kind: str, data: st.DataObject
) -> None:
    rows = Rows(kind)
    tokens = st.integers(0, VOCAB - 1)
    rows.join(data.draw(st.lists(tokens, min_size=1, max_size=20)))
    for _ in range(8):
        match data.draw(st.sampled_from(["step", "join", "leave", "rewind", "run"])):
            case "run":
                places = data.draw(st.permutations(range(len(rows.rows))))
                chosen = places[: data.draw(st.integers(1, len(places)))]
                most = data.draw(st.integers(1, 20))
                run = st.lists(tokens, min_size=1 if kind in PADDED else most, max_size=most)
                rows.run({place: data.draw(run) for place in chosen})
            case "join" if len(rows.rows) < 6:
                rows.join(data.draw(st.lists(tokens, min_size=1, max_size=20)))
            case "leave" if len(rows.rows) > 1:
                rows.leave(data.draw(st.integers(0, len(rows.rows) - 1)))
            case "rewind":
                place = data.draw(st.integers(0, len(rows.rows) - 1))
                rows.rewind(place, data.draw(st.integers(1, 12)))
            case _:
                count = len(rows.rows)
                rows.step(data.draw(st.lists(tokens, min_size=count, max_size=count)))


def test_buffers_are_freed_with_the_last_row() -> None:
    rows = Rows("plain")
    rows.join([1, 2])
    rows.join([3])
    assert rows.slots.nbytes > 0
    rows.leave(0)
    rows.leave(0)
    assert rows.slots.nbytes == 0 and len(rows.slots) == 0
    rows.join([4])
    rows.step([5])


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_no_pass_copies_the_keys_and_values_of_its_rows(kind: str) -> None:
    rows = Rows(kind)
    for length in (1000, 990, 1010, 1005):
        rows.join([length % 7] * length)
    mx.eval(rows.slots.arrays())
    layer = rows.slots.caches[-1]  # no reference to its keys: that alone would have them copied
    size, places = layer.arrays()[0].nbytes, layer.places.count
    for lengths in [[1, 1, 1, 1], [1, 0, 1, 0], [1, 0, 0, 1], [2, 0, 2], [3]]:
        tokens = mx.zeros((len(lengths), max(lengths)), mx.int32)
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        mx.eval(rows.slots.run(rows.model, tokens, lengths))
        assert mx.get_peak_memory() - before < size / 2
    assert layer.places.count == places, "it grew, which is a copy"
