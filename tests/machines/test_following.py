"""What rank 0 tells the others, and what is left there: both in one process, without sums."""

from __future__ import annotations

import gc
import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any, cast
from weakref import ref

import mlx.core as mx
import pytest

import mlxgen
from mlxgen import LanguageModel, OptionError
from mlxgen.engine.kv.commands import Open, Run
from mlxgen.engine.kv.held import Later, Unread
from mlxgen.errors import MachineError
from mlxgen.load import _portable
from mlxgen.loading.sharding import Split
from mlxgen.machines.following import Follower
from mlxgen.machines.group import Group
from mlxgen.machines.machines import Machines
from mlxgen.machines.share import Leading, Part, PartRuntime, Share, shared, uninterrupted
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.seeing import asking, png, seeing

from .laws import told
from .pretended import Raw


class Line:
    """A channel whose messages are carried out at once."""

    lost: MachineError | None = None
    hear: Callable[[bytes], None]

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.failed: list[str] = []
        self.steps = 0

    def send(self, message: bytes) -> None:
        self.messages.append(message)
        self.hear(message)

    def on_loss(self, call: Any) -> None: ...

    def step(self) -> Any:
        self.steps += 1
        return nullcontext()

    def wait_lost(self, timeout: float) -> MachineError | None:
        return self.lost

    def fail(self, sentence: str) -> None:
        self.failed.append(sentence)
        self.lost = MachineError(f"rank 0 failed: {sentence}")


def rank(number: int, line: Line) -> Machines:
    group = Group(cast(Any, Raw(number, 2)), number, 2, "ring", ("a", "b"))
    return Machines(group, cast(Any, line), 1 << 34)


def tiny(share: Share) -> LanguageModel:
    tokenizer = byte_level_tokenizer()
    model = tiny_model(tiny_config(len(tokenizer)))
    mx.eval(model.parameters())
    return LanguageModel(model, tokenizer, share=share)


class Pair:
    """A model on two ranks."""

    def __init__(self, make: Callable[[Share], LanguageModel] = tiny) -> None:
        self.line = Line()
        self.follower = Follower(rank(1, self.line), lambda share, settings: make(share).runtime)
        self.line.hear = self.follower.hear
        self.machines = rank(0, self.line)
        self.lm = shared(self.machines, make, {})


@pytest.fixture
def pair() -> Pair:
    return Pair()


GREEDY: dict[str, Any] = {"max_tokens": 8, "ignore_eos": True, "draft": "off"}  # passes count


@pytest.fixture(autouse=True)
def sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of both ranks, the first of which is rank 0's; they leave anything there, as they may if
    they fail."""
    told: list[mx.array] = []

    def all_sum(own: mx.array, group: Raw) -> mx.array:
        if group.number:
            return told.pop() + own
        told.append(own)
        return mx.full(own.shape, 7, own.dtype)

    monkeypatch.setattr(mx.distributed, "all_sum", all_sum)


@pytest.mark.parametrize("seed", range(3))
def test_all_ranks_hold_the_same_after_whatever_moves_kv(
    pair: Pair, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, made = pair.lm.runtime, list[Any]()

    def runner(**how: Any) -> Any:
        made.append(ref(one := type(runtime).runner(runtime, **how)))
        return one

    monkeypatch.setattr(runtime, "runner", runner)
    tokenizer = pair.lm.tokenizer
    alone = LanguageModel(tiny_model(tiny_config(pair.lm.vocabulary.size)), tokenizer)
    for one, several in zip(told(alone, seed), told(pair.lm, seed), strict=True):
        assert one == several
        with pair.machines.turn():
            pair.machines.flush()
        runners = [each for of in made if (each := of()) is not None]
        assert {each._number for each in runners} == pair.follower._runners.keys()
        for mine in runners:
            theirs = pair.follower._runners[mine._number]
            assert mine._stores.keys() == theirs._stores.keys()
            for kv, store in mine._stores.items():
                other = theirs._stores[kv]
                assert store.length == other.length
                for left, right in zip(store.arrays(), other.arrays(), strict=True):
                    assert mx.array_equal(left, right, equal_nan=True).item()
    mine, theirs = runtime.prefix_cache, pair.follower._models[0].prefix_cache
    assert mine.nbytes == theirs.nbytes > 0
    mine.clear()
    mine.max_bytes = 5000
    assert (theirs.nbytes, theirs.max_bytes) == (0, 5000)


def test_a_load_that_fails_on_all_ranks_ends_none_and_one_that_is_broken_off_all(
    pair: Pair,
) -> None:
    def load(share: Share) -> LanguageModel:
        raise errors.pop()

    errors = [KeyboardInterrupt(), mlxgen.LoadError("there is no such model")]
    with pytest.raises(mlxgen.LoadError):
        shared(pair.machines, load, {})
    assert not pair.line.failed and pair.lm.generate("abc", **GREEDY).tokens
    with pytest.raises(KeyboardInterrupt):
        shared(pair.machines, load, {})
    assert pair.line.failed == ["loading was broken off by KeyboardInterrupt"]
    with pytest.raises(MachineError, match="broken off"):
        pair.lm.generate("abc", **GREEDY)


def test_a_pass_that_fails_once_the_others_know_of_it_ends_all_ranks(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(leading: Leading, pass_: Any) -> mx.array:
        Part._run(leading, pass_)
        raise RuntimeError("no memory")

    monkeypatch.setattr(Leading, "_run", run)
    with pytest.raises(MachineError, match="no memory"):
        pair.lm.generate("abc", **GREEDY)
    assert pair.line.failed == ["no memory"]


def test_parts_of_layers_compute_all_of_a_pass_and_its_tokens_first(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[mx.array] = []
    monkeypatch.setattr(Split, "of", lambda model, group: Split("pipeline", group.rank(), 2))
    monkeypatch.setattr(mx, "async_eval", lambda *arrays: submitted.extend(arrays))
    runner = pair.lm.runtime.runner()
    runner.do(Open(kv := runner.number(), 8))
    logits = runner.do(Run(((kv, (1, 2)),), (0,)))  # which nobody wants
    assert any(each is logits for each in submitted)
    submitted.clear()
    logits = runner.do(Run(((kv, (Later(Unread(mx.array([5])), 0),)),), (1,)))
    assert [each.shape for each in submitted] == [(1, 1), logits.shape] * 2  # of both ranks


def test_the_channel_is_told_of_all_that_waits_for_a_pass_as_it_may_have_no_end(pair: Pair) -> None:
    tokens = pair.lm.generate("abc", **GREEDY).tokens
    assert pair.line.steps >= 2 * len(tokens)  # its submission, and the reading of its draw


def test_a_model_that_is_dropped_is_dropped_on_all_ranks(pair: Pair) -> None:
    pair.lm.generate("abc", **GREEDY)
    assert pair.lm.prefix_cache.nbytes == 0
    del pair.lm
    gc.collect()
    with pair.machines.turn():
        pair.machines.flush()
    assert not pair.follower._models and not pair.follower._runners


def test_a_pass_that_fails_on_rank_0_reaches_nobody(pair: Pair) -> None:
    lm, passes = pair.lm, list[mx.array]()
    alike, model = lm.generate("abcdefgh", **GREEDY).tokens, cast(Any, lm.runtime.model).model
    norm = model.norm  # after all layers

    def failing(states: mx.array) -> mx.array:
        passes.append(states)
        if len(passes) == 3:
            raise RuntimeError("half-way")
        return cast(mx.array, norm(states))

    model.norm = failing
    stream = lm.stream("abcdefgh", **GREEDY)
    with pytest.raises(mlxgen.ModelError, match="half-way"):
        list(stream)
    stream.rewind(0)
    list(stream)
    assert tuple(stream.tokens) == alike
    assert not pair.line.failed
    rows: dict[int, list[int | None]] = {}
    passes.clear()
    for i, chunk in lm.batch(["abcdefgh"] * 3, **GREEDY):
        rows.setdefault(i, []).append(chunk.token)
    assert all(tuple(row) == alike for row in rows.values())


def test_ranks_that_are_out_of_step_end(pair: Pair) -> None:
    stream = pair.lm.stream("abc", **GREEDY)
    next(stream)
    for runner in pair.follower._runners.values():
        for slot in runner._stores.values():
            slot.length += 1
    with pytest.raises(MachineError, match="error in mlxgen"):
        list(stream)


def test_a_part_is_called_by_its_runners_only(pair: Pair) -> None:
    with pytest.raises(MachineError, match="take no part in a call"):
        pair.lm.model(mx.array([[1]]))
    assert pair.lm.model.args.vocab_size == pair.lm.vocab_size


def test_layers_of_other_kinds_on_another_machine_are_refused(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, others = pair.lm.runtime, list[Any]()
    assert isinstance(runtime, PartRuntime)
    own = runtime.footprint

    def exchange(group: Group, mine: Any) -> Any:
        return json.loads(json.dumps([mine, *others]))

    monkeypatch.setattr(Group, "exchange", exchange)
    larger = replace(own, growing=2 * own.growing)
    others.append([asdict(larger), 50, True])
    runtime.settle()
    assert (runtime.footprints, runtime.room, runtime.batches) == ((own, larger), 50, True)
    others.append([asdict(own), 90, False])
    runtime.settle()
    assert (runtime.room, runtime.batches) == (50, False)
    assert runtime.memory.device == 50 + own.weights
    others.append([asdict(replace(own, windows=((8, 100),))), 90, True])
    with pytest.raises(mlxgen.LoadError, match="layers of different kinds"):
        runtime.settle()


def test_an_image_is_told_once_and_held_as_long_as_a_prompt_has_it() -> None:
    def make(share: Share) -> LanguageModel:
        lm = seeing(share=share)
        lm.runtime.model.shard = None
        return lm

    pair = Pair(make)

    def shown() -> int:
        return sum(message.count(b'["show"') for message in pair.line.messages)

    with pair.lm.stream(asking(png(seed=1), png(seed=2)), **GREEDY) as first:
        next(first)
        first.keep()
        assert shown() == 2
        with pair.lm.stream(asking(png(seed=1), png(seed=3)), **GREEDY) as second:  # one is alike
            next(second)
            second.keep()
        assert shown() == 4
        pair.lm.prefix_cache.clear()
        del second
        gc.collect()
        next(first)
        first.keep()
        assert len(pair.follower._images) == 2
    pair.lm.prefix_cache.clear()
    del first
    gc.collect()
    pair.lm.generate("abc", **GREEDY)
    assert not pair.follower._images


def test_ctrl_c_waits_for_the_end_of_a_command() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        os.kill(os.getpid(), signal.SIGINT)
        done.append(True)
    assert done == [True]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_several_machines_have_to_be_started() -> None:
    with pytest.raises(OptionError) as caught:
        mlxgen.load(distributed=True)
    assert caught.value.field == "distributed"


def test_paths_are_told_as_other_machines_know_them(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    told = {tmp_path / "models" / "a": "~/models/a", "owner/name": "owner/name", "/a/b": "/a/b"}
    assert {name: _portable(name) for name in told} == told
