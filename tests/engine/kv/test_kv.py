"""A KV cache is a cache of its history: a row gives what a fresh run of its history gives, whatever
was taken back or ran astray, alone and in slots beside others."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import RotatingKVCache

from mlxgen import LanguageModel
from mlxgen.engine.history import History
from mlxgen.engine.kv.commands import Run
from mlxgen.engine.kv.groups import Slots
from mlxgen.engine.kv.kv import KV
from mlxgen.engine.kv.layers import arrays_in
from mlxgen.engine.kv.runner import Runner
from mlxgen.engine.kv.slot_caches import SLACK
from mlxgen.engine.kv.slots import Group
from tests.fakes import alphabet_tokenizer
from tests.fakes.architectures import VOCAB, cache_kinds, random_model

from ...effort import tries

QUANTISED = ["quantised", "quantised later"]
PADDED = ["plain", *QUANTISED, "rotating", "sliding window"]
SLOTTED = [*PADDED, "recurrent", "hybrid", "list of caches"]
EVERYWHERE = [(kind, False) for kind in cache_kinds()] + [(kind, True) for kind in SLOTTED]


@cache
def loaded(kind: str) -> tuple[Any, Callable[[], list[Any]]]:
    return cache_kinds()[kind]()


class Rows:
    """Histories and their caches. Whatever runs is compared with a fresh run of its history."""

    def __init__(self, kind: str, *, slots: bool = True) -> None:
        self.model, self.make = loaded(kind)
        self.runner = Runner(
            self.model, self.make, Slots(self.make, (lambda: True) if slots else None)
        )
        self.atol = 1e-2 if kind in QUANTISED else 2e-3  # what is nearly between two of few steps
        self.dice = random.Random(kind)
        self.rows: list[tuple[History, KV]] = []

    def tokens(self, count: int) -> list[int]:
        return [self.dice.randrange(VOCAB) for _ in range(count)]

    def open(self, length: int) -> None:
        """A row that has not run yet."""
        history, kv = History(self.tokens(length)), KV(self.runner)
        kv.align(history)
        self.rows.append((history, kv))

    def join(self, length: int) -> None:
        self.open(length)
        self.run({len(self.rows) - 1: 1})

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.run(dict.fromkeys(range(len(self.rows)), 1))

    def run(self, counts: Mapping[int, int], looks: bool = True) -> None:
        """Give some rows so many tokens more, in one pass with those between them."""
        if self.runner.slots.recurrent:
            counts = dict.fromkeys(counts, max(counts.values()))  # padding would go into states
        chosen: dict[Any, list[tuple[History, KV]]] = {}
        for place, count in counts.items():
            history, kv = self.rows[place]
            history += self.tokens(count)
            assert kv.align(history) == history[kv.length :]
            chosen.setdefault(kv.slot.group, []).append((history, kv))
        for place, count in counts.items():  # what the way back has left to run
            history, kv = self.rows[place]
            if rest := history[kv.length : -count]:
                kv.run(rest, wanted=0)
        for rows in chosen.values():
            self._pass(rows, looks)

    def _pass(self, rows: list[tuple[History, KV]], looks: bool) -> None:
        rows.sort(key=lambda row: row[1].slot.index)
        tokens = [tuple(history[kv.length :]) for history, kv in rows]
        numbers = [kv.number for _, kv in rows]
        wanted = [self.dice.randint(0, len(ran)) for ran in tokens]
        found = self.runner.do(Run(tuple(zip(numbers, tokens, strict=True)), tuple(wanted)))
        mx.eval(found)
        at = 0
        for count, (history, kv), ran in zip(wanted, rows, tokens, strict=True):
            kv.tokens += ran
            assert kv.common(history) == kv.length == len(history)
            if looks and count:
                alone = Group(self.make, own=True).add(0)  # in mlx-lm's caches
                whole = alone.forward(self.model, mx.array([history]))[0, -count:]
                got, expected = np.array(found[at : at + count]), np.array(whole)
                np.testing.assert_allclose(got, expected, atol=self.atol, rtol=2e-3)
            at += count
        assert not at or found.shape[0] == at

    def stray(self, place: int, count: int) -> None:
        """A look-ahead or a draft that turns out wrong."""
        self.rows[place][1].run(self.tokens(count))

    def back(self, place: int, count: int) -> None:
        history, _ = self.rows[place]
        history.cut(max(1, len(history) - count))

    def anew(self, place: int, length: int) -> None:
        history, _ = self.rows[place]
        history.cut(0)
        history += self.tokens(length)

    def fork(self, place: int) -> None:
        history, kv = self.rows[place]
        self.rows.append((history.fork(), kv.fork()))

    def leave(self, place: int) -> None:
        self.rows.pop(place)[1].close()

    def check(self) -> None:
        self.runner.slots.check_integrity()

    def finish(self) -> None:
        for _ in range(2):  # each is compared with a chance of half
            self.step()


PADDING_IN_A_RING = [("join", 20), ("join", 20), *[("run", {0: 1, 1: 1}, False)] * (SLACK - 16)]
PADDING_IN_A_RING += [("run", {0: 1, 1: 40}), ("back", 0, SLACK - 20), ("step",)]
PASSES = [("run", {0: 1, 3: 1}), ("step",), ("run", {0: 3, 2: 3}), ("run", {1: 1}), ("step",)]
SCRIPTS: dict[str, list[tuple[Any, ...]]] = {
    "rows between": [*[("join", n) for n in (3, 17, 5, 2)], *PASSES, ("back", 1, 1), ("step",)],
    "ragged": [*[("join", n) for n in (3, 17, 5)], ("run", {0: 2, 1: 7, 2: 12}), ("step",)],
    "copies": [("join", 15), ("step", 5), ("fork", 0), ("step",), ("back", 1, 1), ("step",)],
    "a copy's ways back": [
        *[("join", 70), ("step", 3), ("fork", 0), ("back", 0, 9), ("run", {0: 1})],
        *[("step", 70), ("back", 1, 30), ("step",)],
    ],
    "moved unrun": [("join", 15), ("join", 4), ("open", 5), ("leave", 0), ("run", {1: 1})],
    "anew": [("join", 15), ("join", 4), ("step",), ("anew", 0, 11), ("step",)],
    "leaving": [*[("join", n) for n in (9, 3, 20)], ("leave", 0), ("step", 2), ("back", 1, 4)],
    "long runs": [("join", 3), ("join", 5), ("run", {1: 3 * SLACK}), ("step",), ("back", 1, 2)],
    "a full ring": [("join", 3), ("join", 286), ("run", {1: SLACK + 1}), ("back", 1, 200)],
    "padding in a ring": PADDING_IN_A_RING,
}


@pytest.mark.parametrize("kind", SLOTTED)
@pytest.mark.parametrize("script", SCRIPTS)
def test_rows_side_by_side_give_what_each_gives_alone(script: str, kind: str) -> None:
    rows = Rows(kind)
    for deed, *values in SCRIPTS[script]:
        getattr(rows, deed)(*values)
        rows.check()
    rows.finish()


@pytest.mark.parametrize("kind, slots", EVERYWHERE)
@settings(max_examples=tries(64))
@given(data=st.data())
def test_aligning_equals_an_empty_cache_that_ran_the_history(
    kind: str, slots: bool, data: st.DataObject
) -> None:
    rows = Rows(kind, slots=slots)
    rows.join(data.draw(st.integers(1, 70)))
    for _ in range(data.draw(st.integers(1, 10))):
        place = data.draw(st.integers(0, len(rows.rows) - 1))
        match data.draw(st.sampled_from(["run", "back", "join", "fork", "stray", "leave"])):
            case "join" if len(rows.rows) < 5:
                rows.join(data.draw(st.integers(1, 20)))
            case "fork" if len(rows.rows) < 5:
                rows.fork(place)
            case "leave" if len(rows.rows) > 1:
                rows.leave(place)
            case "stray":
                rows.stray(place, data.draw(st.integers(1, 3)))
            case "back":
                rows.back(place, data.draw(st.integers(0, 40)))
            case _:
                places = data.draw(st.permutations(range(len(rows.rows))))
                counts = {each: data.draw(st.integers(1, 12)) for each in [place, *places[::2]]}
                rows.run(counts)
        rows.check()
    rows.finish()


WAYS_BACK = [
    *[(kind, 15, 3, 1, 18, 18) for kind in SLOTTED],  # the last token, for nothing
    *[(kind, 70, 80, 5, 64, 145) for kind in ("recurrent", "hybrid", "concatenating")],
    ("sliding window", 70, 80, 5, 146, 146),
    ("sliding window", 10, 600, SLACK, 355, 355),
    ("sliding window", 10, 600, SLACK + 44, 0, 0),  # more than its ring has
    ("chunked", 10, 600, 5, 0, 605),
]
"""What a row of a kind joins with and runs, how far it goes back, and what it holds then."""


@pytest.mark.parametrize("kind, first, more, back, least, most", WAYS_BACK)
def test_a_row_goes_back_to_where_its_caches_lead(
    kind: str, first: int, more: int, back: int, least: int, most: int
) -> None:
    rows = Rows(kind, slots=kind in SLOTTED)
    rows.join(first)
    while more > 0:
        rows.run({0: (count := 60 if more >= 100 else 1)}, looks=False)
        more -= count
    ((history, kv),) = rows.rows
    rows.back(0, back)
    kv.align(history, len(history))
    assert least <= kv.length <= most
    rows.finish()


@pytest.mark.parametrize("wanted", [0, 1, 3])
def test_the_head_is_once_in_the_graph_of_what_is_wanted_and_not_in_that_of_the_cache(
    wanted: int,
) -> None:
    model, make = cache_kinds()["plain"]()
    nn.quantize(model, 32, 8, class_predicate=lambda path, _: path == "lm_head")
    for length in (8, 200):
        kv, graph = KV(Runner(model, make)), io.StringIO()
        logits = kv.run([i % VOCAB for i in range(length)], wanted)
        mx.export_to_dot(graph, *([logits] if wanted else arrays_in(kv.slot.arrays())))
        assert graph.getvalue().count("QuantizedMatmul") == bool(wanted)


@pytest.mark.parametrize("slots", [False, True])
def test_a_pass_that_fails_leaves_nothing_of_those_who_ran(slots: bool) -> None:
    rows = Rows("plain", slots=slots)
    rows.join(5)
    rows.join(6)
    model = rows.model

    def fails(inputs: mx.array, cache: list[Any]) -> mx.array:
        model(inputs[:, :1], cache=cache)
        raise RuntimeError("half-way")

    rows.runner.model = fails
    with pytest.raises(RuntimeError):
        rows.run({1: 3})
    rows.runner.model = model
    (history, kv), (other, ran) = rows.rows
    assert len(kv.align(history)) == 1 and len(ran.align(other)) == len(other)
    rows.step()


def test_aligning_looks_at_what_has_changed_only() -> None:
    looks = 0

    class Counting(History):
        def __getitem__(self, index: Any) -> Any:
            nonlocal looks
            looks += isinstance(index, int)
            return super().__getitem__(index)

    history, kv = Counting([i % VOCAB for i in range(500)]), KV(Rows("plain").runner)
    kv.run(list(history), wanted=0)
    assert kv.common(history) == looks == 500
    for _ in range(10):
        looks = 0
        history.cut(len(history) - 3)
        history += [1, 2]
        kv.run([7], wanted=0)
        kv.align(history, len(history))
        kv.run([1, 2], wanted=0)
        assert kv.common(history) == len(history)
        assert looks <= 8


@settings(max_examples=tries(100))
@given(
    moves=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 4)), max_size=12),
    asked=st.integers(0, 12),
)
def test_a_history_knows_how_far_back_it_was_cut_since_any_moment(
    moves: list[tuple[int, int]], asked: int
) -> None:
    history, lows, lengths, moments = History(range(10)), [10], [10], [0]
    for back, grow in moves:
        history.cut(max(0, len(history) - back))
        lows = [min(low, len(history)) for low in lows]
        history += range(grow)
        lows.append(len(history))
        lengths.append(len(history))
        moments.append(history.moment)
    asked = min(asked, len(moments) - 1)
    low = history.fork().low_since(moments[asked])
    assert min(low, lengths[asked]) == lows[asked]


@pytest.mark.parametrize(
    ("lengths", "groups"),
    [
        ((100, 90, 95, 100_000, 60_000, 300), [0, 0, 0, 1, 1, 0]),
        ((100_000, 90, 90, 90), [0, 0, 0, 1]),
    ],
)
def test_sequences_of_another_length_get_a_group_of_their_own(
    lengths: tuple[int, ...], groups: list[int]
) -> None:
    rows = Rows("plain")
    for length in lengths:
        rows.open(length)
    assert [kv.slot.group.number for _, kv in rows.rows] == groups


def test_a_model_that_asks_its_caches_for_more_runs_with_mlx_lms_own() -> None:
    plain = random_model("gemma3_text")

    class Asking(type(plain)):  # type: ignore[misc]
        def __call__(self, inputs: mx.array, cache: Any) -> mx.array:
            assert all(each.max_size for each in cache if isinstance(each, RotatingKVCache))
            assert any(isinstance(each, RotatingKVCache) for each in cache)
            logits: mx.array = super().__call__(inputs, cache=cache)
            return logits

    given: dict[str, Any] = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}
    prompt = [i % VOCAB for i in range(1, 40)]
    expected = LanguageModel(plain, alphabet_tokenizer()).generate(prompt, **given).tokens
    asking = random_model("gemma3_text")
    asking.__class__ = Asking
    lm = LanguageModel(asking, alphabet_tokenizer())
    assert not lm.runtime.batches and not lm.prefix_cache.nbytes
    for _ in range(2):  # the second time from what is kept
        with lm.stream(prompt, **given) as stream:
            assert tuple(chunk.token for chunk in stream) == expected
            stream.keep()
    assert stream.usage.cached_tokens and len(lm.batch([prompt] * 2, **given).run()) == 2


@pytest.mark.parametrize("kind", ["plain", "hybrid"])
def test_no_pass_copies_the_keys_and_values_of_its_rows(kind: str) -> None:
    rows = Rows(kind)
    for length in (2000, 1990, 2010, 2005):
        rows.join(length)
    slots = rows.runner.slots
    mx.eval([array for group in slots.groups for array in group.arrays()])
    held = slots.nbytes
    for counts in ({0: 1, 1: 1, 2: 1, 3: 1}, {0: 1, 2: 1}, {0: 2, 2: 2}, {3: 3}):
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        rows.run(counts, looks=False)
        assert mx.get_peak_memory() - before < held / 8
    assert slots.nbytes == held, "it grew, which is a copy"
