"""Who is loaded, who has to go, and who waits: with models that have no weights."""

from __future__ import annotations

import asyncio
import random

import pytest

from mlxgen.server.fleet import fleet as module
from mlxgen.server.fleet import member
from mlxgen.server.fleet.catalogue import Entry
from tests.effort import tries
from tests.server.fakes import WAIT

from .kit import MIB, Yard, refused, with_yard


def test_a_model_is_loaded_when_it_is_asked_for_and_once_for_all_who_ask() -> None:
    async def test(yard: Yard) -> None:
        assert yard.loaded == ""
        first, second, other = await asyncio.gather(yard.use("a"), yard.use("a"), yard.use("b"))
        assert first is second and other is not first
        assert (first.model.name, other.model.name) == ("a", "b")
        assert sorted(yard.began) == ["a", "b"] and yard.loaded == "ab"
        assert await yard.use("a") is first

    with_yard(test)


def test_what_was_used_longest_ago_goes_first() -> None:
    async def test(yard: Yard) -> None:
        for name in "abac":
            await yard.used(name)
        assert yard.loaded == "ac"
        await yard.used("b")
        assert yard.loaded == "bc"

    with_yard(test)


def test_a_model_in_use_never_goes_and_the_load_waits_for_it() -> None:
    async def test(yard: Yard) -> None:
        a, _ = await yard.use("a"), await yard.use("b")
        waiting = asyncio.create_task(yard.use("c"))
        await yard.until(lambda: "unloading" in yard.states.values())
        assert yard.states == {"a": "unloading", "b": "loaded", "c": "loading"}
        assert a.engine.stats is not None and yard.fleet.members["a"].serving is a
        late = asyncio.create_task(yard.use("a"))  # comes after the load began to wait
        await asyncio.sleep(0.02)
        assert not waiting.done() and not late.done()
        yard.release("a")
        await waiting
        await yard.until(lambda: yard.states["b"] == "unloading")
        yard.release("b")
        await late  # and is not lost
        assert yard.loaded == "ac"

    with_yard(test)


def test_an_idle_model_goes_before_one_in_use() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("a")
        await yard.used("b")
        await yard.use("c")
        assert yard.loaded == "ac"

    with_yard(test)


def test_only_as_many_go_as_have_to() -> None:
    async def test(yard: Yard) -> None:
        for name in "abc":
            await yard.used(name)
        await yard.used("d")
        assert yard.loaded == "cd"  # a and b together make room for it
        await yard.used("a")
        assert yard.loaded == "ad"

    with_yard(test, sizes=(40, 40, 40, 80), room=120, most=3)


def test_a_model_that_can_never_fit_is_refused_before_anything_is_unloaded() -> None:
    async def test(yard: Yard) -> None:
        await yard.used("a")
        error = await refused(yard.use("b"))
        assert (error.status, error.code) == (503, "model_not_loaded")
        assert "b is not loaded: it needs 1.18 GB" in error.message
        assert yard.loaded == "a" and yard.began == ["a"]

    with_yard(test, sizes=(1, 1000))


def test_with_the_limit_ignored_a_large_model_is_loaded_alone() -> None:
    async def test(yard: Yard) -> None:
        await yard.used("a")
        await yard.used("b")
        assert yard.loaded == "b"

    with_yard(test, sizes=(1, 1000), ignore_memory_limit=True)


def test_a_load_that_nobody_waits_for_any_more_is_given_up_and_nobody_goes_for_it() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("a")
        await yard.use("b")
        waiting = asyncio.create_task(yard.use("c"))
        await yard.until(lambda: yard.states["a"] == "unloading")
        late = asyncio.create_task(yard.use("a"))
        waiting.cancel()
        assert (await late).model.name == "a"
        await yard.until(lambda: yard.states["c"] == "unloaded")
        assert yard.loaded == "ab" and yard.began == ["a", "b"]
        assert yard.fleet.members["c"].reason is None

    with_yard(test)


def test_who_leaves_does_not_end_a_load_that_others_wait_for() -> None:
    async def test(yard: Yard) -> None:
        tasks = [asyncio.create_task(yard.use("a")) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        await asyncio.gather(*tasks[1:])
        assert yard.fleet.members["a"].users == 2
        for _ in range(2):
            yard.release("a")
        assert yard.fleet.members["a"].is_idle

    with_yard(test)


def test_who_leaves_in_the_moment_of_getting_a_model_does_not_keep_it() -> None:
    async def test(yard: Yard) -> None:
        task = asyncio.create_task(yard.use("a"))
        member = yard.fleet.members["a"]
        while not member.users:  # it has it, and does not know
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert member.users == (0 if task.cancelled() else 1)
        if not task.cancelled():
            yard.release("a")
        assert member.is_idle

    with_yard(test)


def test_a_load_that_fails_is_told_to_all_and_tried_again_later() -> None:
    async def test(yard: Yard) -> None:
        yard.broken.add("b")
        await yard.used("a")
        errors = await asyncio.gather(refused(yard.use("b")), refused(yard.use("b")))
        for error in errors:
            assert (error.status, error.code) == (503, "model_not_loaded")
            assert error.message.endswith("ValueError: no such tensor")
        told = yard.fleet.members["b"].told()
        assert told["value"] == "unloaded" and told["failed"] and "tensor" in told["reason"]
        assert "tensor" in (await refused(yard.use("b"))).message  # at once
        assert yard.began == ["a", "b"]
        yard.broken.clear()
        yard.fleet.members["b"].failed_at -= module.PAUSE
        await yard.used("b")
        assert yard.loaded == "ab"
        assert yard.fleet.members["b"].told() == {"value": "loaded"}

    with_yard(test)


def test_how_far_a_load_is_is_told_by_what_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    one = member.Member(Entry(name="a"))
    assert one.told() == {"value": "unloaded"}
    one.status = member.Status.LOADING
    assert one.told() == {"value": "loading"}  # it waits for room
    one.weights, one.held_before = 8 * MIB, 50 * MIB
    held = iter([49, 54, 90])
    monkeypatch.setattr(member, "held_bytes", lambda: next(held) * MIB)
    assert [one.told()["progress"] for _ in range(3)] == [0, 0.5, 1]
    one.status = member.Status.LOADED
    assert one.told() == {"value": "loaded"}


def test_a_model_that_nobody_uses_is_unloaded_after_a_while_and_loaded_again() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("b")
        await yard.used("a")
        await yard.until(lambda: yard.states["a"] == "unloaded")
        assert yard.loaded == "b"
        await yard.used("a")
        assert yard.began == ["b", "a", "a"]

    with_yard(test, idle_unload=0.05)


def test_the_memory_for_kv_is_shared_out_whenever_a_model_comes_or_goes() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("a")
        assert yard.models["a"].shares[-1] == (10 * MIB, 1)
        await yard.use("b")
        a, b = (yard.models[name].shares for name in "ab")
        assert a[-1] == b[-1] == (40 * MIB, 2)
        assert a.index((40 * MIB, 2)) == 1  # before the weights of the other were read
        yard.fleet.dismiss(yard.fleet.members["b"])
        yard.release("b")
        await yard.until(lambda: a[-1] == (10 * MIB, 1))

    with_yard(test, sizes=(10, 30))


def test_figures_of_models_that_went_are_not_lost() -> None:
    async def test(yard: Yard) -> None:
        serving = await yard.use("a")
        await serving.engine.do(lambda scheduler: setattr(scheduler, "steps", 7))
        await yard.until(lambda: serving.engine.stats.steps == 7)
        yard.release("a")
        for name in "bc":
            await yard.use(name)
        assert yard.loaded == "bc"
        stats = yard.fleet.stats()
        assert stats is not None and stats.steps == 7

    with_yard(test)


def test_an_engine_that_fails_is_told_and_the_others_still_end() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("a")
        serving = await yard.use("b")

        def fails(scheduler: object) -> None:
            raise RuntimeError("the device is gone")

        serving.engine.do(fails)
        await yard.until(lambda: bool(yard.failures))
        assert str(yard.failures.pop()) == "the device is gone"

    with_yard(test)


def test_everything_ends_while_models_are_loaded_unloaded_and_waited_for() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("a")
        await yard.use("b")
        tasks = [asyncio.create_task(yard.use(name)) for name in "ccd"]
        await yard.until(lambda: "unloading" in yard.states.values())
        for task in tasks:
            task.cancel()

    with_yard(test, sizes=(1, 1, 1, 1))


def test_a_model_that_goes_at_this_moment_is_told_of_the_new_plan_or_not_waited_for() -> None:
    async def test(yard: Yard) -> None:
        for name in "ab":
            await yard.used(name)
        yard.fleet.dismiss(yard.fleet.members["a"])
        async with asyncio.timeout(WAIT):
            await yard.fleet._divide()

    with_yard(test)


def test_whoever_asks_for_a_model_gets_it_however_many_ask_for_others() -> None:
    async def test(yard: Yard) -> None:
        chance = random.Random(7)
        most = 0

        async def client(number: int) -> None:
            nonlocal most
            for _ in range(6):
                name = chance.choice("abcd")
                if chance.random() < 0.1:
                    task = asyncio.create_task(yard.use(name))
                    await asyncio.sleep(chance.random() * 0.01)
                    task.cancel()
                    if not (await asyncio.gather(task, return_exceptions=True)) or (
                        not task.cancelled()
                    ):
                        yard.release(name)
                    continue
                serving = await yard.use(name)
                assert serving.model.name == name
                await asyncio.sleep(chance.random() * 0.005)
                member = yard.fleet.members[name]
                assert member.serving is serving  # it did not go meanwhile
                most = max(most, len(yard.fleet.serving))
                yard.release(name)

        await asyncio.gather(*(client(i) for i in range(16)))
        assert most <= 2
        assert all(not each.users and not each.waiters for each in yard.fleet.members.values())

    for _ in range(tries(40)):
        with_yard(test, sizes=(1, 1, 1, 1), room=4)
