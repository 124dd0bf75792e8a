"""The guard: specifications that explode take a process with them, and nothing else."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from mlxgen.errors import GrammarError
from mlxgen.filters import Choice, JsonSchema, Lark, Regex
from mlxgen.filters.compiled import GrammarEngine
from mlxgen.load import load
from mlxgen.server.engine.boot import engine_of
from mlxgen.server.errors import RequestError
from mlxgen.server.guard.child import Facts, Trial
from mlxgen.server.guard.guard import Guard, _digest
from mlxgen.server.settings import read_settings
from mlxgen.tokens import Vocabulary

from .guarding import with_guard


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return load().vocabulary


def facts(vocabulary: Vocabulary, cpu_seconds: float = 0.4, memory: int = 1 << 29) -> Facts:
    return Facts.of(vocabulary, vocabulary.size, cpu_seconds=cpu_seconds, memory=memory)


def huge(count: int = 8000) -> JsonSchema:
    """A schema that takes seconds to compile."""
    return JsonSchema({"type": "object", "properties": {f"p{i}": {} for i in range(count)}})


def knows(guard: Guard, specs: Sequence[Any]) -> bool:
    """Whether all of these were tried and are good."""
    trials = [guard._trials.get(_digest(pickle.dumps(spec))) for spec in specs]
    return all(one and one.done() and one.result().error is None for one in trials)


async def reason(guard: Guard, spec: Any) -> str | None:
    try:
        await guard.check(spec)
    except GrammarError as error:
        return str(error)
    return None


def test_good_ones_pass_bad_ones_have_the_compilers_reason(vocabulary: Vocabulary) -> None:
    async def test(guard: Guard) -> None:
        good = (Regex("[a-z]+"), Choice(["yes", "no"]), JsonSchema({"type": "object"}))
        assert not knows(guard, good)
        for spec in good:
            assert await reason(guard, spec) is None
        assert knows(guard, good)
        assert knows(guard, (Regex("[a-z]+"),))
        assert "unclosed group" in (await reason(guard, Regex("(a")) or "")
        assert "start" in (await reason(guard, Lark("x: y")) or "")
        assert not knows(guard, (Regex("(a"),))
        assert len(await reason(guard, Regex("(" * 5000)) or "") <= 500

    with_guard(facts(vocabulary), test)


def test_what_takes_too_long_is_refused_once_and_others_are_not_held_up(
    vocabulary: Vocabulary,
) -> None:
    costly: list[bool] = []

    async def test(guard: Guard) -> None:
        while guard.idle < 2:
            await asyncio.sleep(0.01)
        exploding = asyncio.create_task(reason(guard, huge()))
        again = asyncio.create_task(reason(guard, huge()))
        await asyncio.sleep(0)
        assert await reason(guard, Regex("meanwhile")) is None
        assert not exploding.done()
        assert "more than 0.4 s" in (await exploding or "")
        assert await again == await exploding
        assert costly == [True]
        assert "more than 0.4 s" in (await reason(guard, huge()) or "")
        assert costly == [True]
        assert await reason(guard, Regex("afterwards")) is None

    with_guard(facts(vocabulary), test, processes=2, costly=lambda: costly.append(True))


def test_what_takes_too_much_memory_is_refused(vocabulary: Vocabulary) -> None:
    async def test(guard: Guard) -> None:
        assert "more than 4 MiB" in (await reason(guard, huge()) or "")
        assert await reason(guard, Regex("small")) is None

    with_guard(facts(vocabulary, cpu_seconds=30, memory=4 << 20), test)


class Crashes:
    """Takes the process with it that compiles it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return os.abort, ()


def test_what_crashes_the_compiler_is_refused_and_the_next_is_not(vocabulary: Vocabulary) -> None:
    async def test(guard: Guard) -> None:
        assert "cannot be compiled" in (await reason(guard, Crashes()) or "")
        assert await reason(guard, Regex("small")) is None

    with_guard(facts(vocabulary), test)


def test_with_every_process_busy_the_answer_is_to_come_back(vocabulary: Vocabulary) -> None:
    async def test(guard: Guard) -> None:
        await guard.check(Regex("warm"))
        busy = asyncio.create_task(reason(guard, huge(16_000)))
        await asyncio.sleep(0.05)
        with pytest.raises(RequestError) as caught:
            await guard.check(Regex("waits"))
        assert caught.value.status == 503
        assert "to compile" in (await busy or "")

    known = facts(vocabulary, cpu_seconds=1.5, memory=1 << 33)  # the time is what runs out
    with_guard(known, test, processes=1, patience=0.3)


def test_a_client_that_leaves_does_not_stop_a_trial(vocabulary: Vocabulary) -> None:
    async def test(guard: Guard) -> None:
        await guard.check(Regex("warm"))
        leaving = asyncio.create_task(guard.check(Regex("x{1,50}")))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.wait({leaving})
        while not knows(guard, (Regex("x{1,50}"),)):
            await asyncio.sleep(0.01)

    with_guard(facts(vocabulary), test)


def test_a_vocabulary_of_facts_alone_compiles_to_the_same_masks(vocabulary: Vocabulary) -> None:
    import numpy as np

    pretended = pickle.loads(pickle.dumps(facts(vocabulary))).vocabulary
    for spec in (Regex("[a-z]+ [0-9]"), JsonSchema({"type": "object"}), Choice(["é😊", "no"])):
        rows = []
        for known in (vocabulary, pretended):
            row = np.zeros((vocabulary.size + 31) // 32, dtype=np.int32)
            spec.bind(known, vocabulary.size).fill(row)
            rows.append(row.tobytes())
        assert rows[0] == rows[1]


def test_a_panic_is_a_refusal_and_the_process_is_replaced(vocabulary: Vocabulary) -> None:
    class Panicking:
        def bind(self, tokenizer: Any, vocab_size: int) -> Any:
            raise BaseException("a panic of a library")

    verdict = Trial(facts(vocabulary)).judge(Panicking())
    assert verdict.error == "it cannot be compiled (BaseException)"
    assert verdict.worn


def test_what_is_served_compiles_where_requests_are_prepared_and_nowhere_else() -> None:
    lm = load()
    engine_of(lm, read_settings([]))
    assert GrammarEngine.of(lm.vocabulary, lm.vocab_size).compiles_ahead
