"""Models with adapters, which share the weights of others: each has a place in the fleet."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from mlxgen.errors import OptionError
from mlxgen.server.errors import RequestError
from mlxgen.server.fleet.catalogue import Catalogue
from mlxgen.server.settings import Settings
from tests.effort import tries
from tests.fakes.checkpoints import write_adapter

from .kit import Yard, refused, with_yard, write_letter
from .test_several import Server, run

BASES = {"b": "a", "c": "a"}


# ---- who is loaded --------------------------------------------------------------------------


def test_a_base_is_loaded_first_and_stays_while_one_shares_its_weights() -> None:
    async def test(yard: Yard) -> None:
        await yard.used("b")
        assert yard.began == ["a", "b"] and yard.loaded == "ab"
        await yard.use("c")
        assert yard.began == ["a", "b", "c"]
        await yard.until(lambda: yard.loaded == "ac")  # b is idle, a is not
        await asyncio.sleep(0.1)
        assert yard.loaded == "ac"
        yard.release("c")
        await yard.until(lambda: yard.loaded == "")
        assert not yard.fleet.members["a"].users

    with_yard(test, most=3, bases=BASES, idle_unload=0.05)


def test_a_base_goes_with_those_that_share_its_weights_and_only_then() -> None:
    async def test(yard: Yard) -> None:
        for name in "bd":
            await yard.used(name)
        assert yard.loaded == "abd"
        await yard.used("b")
        await yard.used("e")  # and not the base, which is used for the adapter
        assert yard.loaded == "abe"
        await yard.used("d")
        await yard.used("e")
        await yard.used("f")
        assert yard.loaded == "f"

    with_yard(test, sizes=(50, 1, 1, 50, 50, 200), room=101, most=3, bases=BASES)


def test_a_base_in_use_through_an_adapter_goes_after_idle_models() -> None:
    async def test(yard: Yard) -> None:
        await yard.use("b")
        await yard.used("d")
        await yard.used("e")
        assert yard.loaded == "abe"
        waiting = asyncio.create_task(yard.use("f"))
        await yard.until(lambda: yard.loaded == "")
        assert yard.states["a"] == yard.states["b"] == "unloading"
        late = asyncio.create_task(yard.use("c"))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        yard.release("b")
        await waiting
        yard.release("f")
        await late
        assert yard.loaded == "ac"

    with_yard(test, sizes=(50, 1, 1, 50, 50, 101), room=101, most=3, bases=BASES)


def test_nobody_sends_away_the_base_that_it_needs() -> None:
    async def test(yard: Yard) -> None:
        await yard.used("a")
        error = await refused(yard.use("b"))
        assert error.status == 503 and "it needs" in error.message
        assert yard.loaded == "a"
        await yard.used("c")
        assert yard.loaded == "ac" and yard.fleet.members["a"].users == 1

    with_yard(test, sizes=(60, 60, 1), room=100, most=2, bases=BASES)


def test_an_adapter_cannot_be_loaded_while_its_base_cannot() -> None:
    async def test(yard: Yard) -> None:
        yard.broken.add("a")
        error = await refused(yard.use("b"))
        assert error.status == 503 and "no such tensor" in error.message
        assert yard.loaded == ""

    with_yard(test, bases=BASES)


def test_a_base_is_let_go_by_an_adapter_that_does_not_fit() -> None:
    async def test(yard: Yard) -> None:
        yard.broken.add("b")
        await refused(yard.use("b"))
        await yard.until(lambda: yard.loaded == "a")
        assert not yard.fleet.members["a"].users and yard.fleet.members["b"].weights == 0

    with_yard(test, bases=BASES)


def test_everybody_gets_the_model_that_they_ask_for_and_its_base_is_there() -> None:
    async def test(yard: Yard) -> None:
        chance = random.Random(3)

        async def client() -> None:
            for _ in range(5):
                name = chance.choice("abcde")
                if chance.random() < 0.2:
                    task = asyncio.create_task(yard.use(name))
                    await asyncio.sleep(chance.random() * 0.01)
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)
                    if not task.cancelled():
                        yard.release(name)
                    continue
                serving = await yard.use(name)
                assert serving.model.name == name
                await asyncio.sleep(chance.random() * 0.005)
                loaded = {each.model.name for each in yard.fleet.serving}
                assert {name, *BASES.get(name, "")} <= loaded
                yard.release(name)

        await asyncio.gather(*(client() for _ in range(16)))
        for member in yard.fleet.members.values():
            assert member.users == len(member.sharers) and not member.waiters

    for _ in range(tries(12)):
        with_yard(test, sizes=(1, 1, 1, 1, 1), room=5, most=3, bases=BASES)


# ---- their names ----------------------------------------------------------------------------


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models, and adapters for the first with which it says other letters."""
    root = tmp_path_factory.mktemp("adapted")
    for name, letter in (("one", "a"), ("two", "b"), ("says-c", "c"), ("says-d", "d")):
        write_letter(root / name, letter)
    for name in ("says-c", "says-d"):
        tensors: Any = mx.load(str(root / name / "model.safetensors"))
        table = "model.embed_tokens.weight"
        folder = root / f"{name}-adapter"
        folder.mkdir()
        mx.save_safetensors(str(folder / "adapters.safetensors"), {table: tensors[table]})
        settings = {"fine_tune_type": "full", "num_layers": 1, "lora_parameters": {}}
        (folder / "adapter_config.json").write_text(json.dumps(settings))
    return root


def settings_of(shelf: Path, *adapters: str, **more: Any) -> Settings:
    given = tuple(each.replace("@", f"{shelf}/") for each in adapters)
    models = (str(shelf / "one"), str(shelf / "two"))
    return Settings(models=models, adapters=given, **more)


def test_an_adapter_has_a_name_beside_each_name_of_its_base(shelf: Path) -> None:
    settings = settings_of(
        shelf,
        "c=@says-c-adapter",
        "two:d=@says-d-adapter",
        aliases=("fast=one", "poet=one:c"),
        strict_model=True,
    )
    catalogue = Catalogue.of(settings)
    assert [each.listed for each in catalogue.entries] == [
        ("one", "fast"),
        ("two",),
        ("one:c", "poet"),
        ("two:d",),
    ]
    for name in ("one:c", "fast:c", "poet", f"{shelf}/one:c"):
        assert catalogue.named(name).name == "one:c"
    assert catalogue.named("two:d").base == "two"
    with pytest.raises(RequestError, match="there is no model 'two:c'"):
        catalogue.named("two:c")


def test_an_unknown_adapter_of_a_model_that_has_some_is_never_ignored(shelf: Path) -> None:
    catalogue = Catalogue.of(settings_of(shelf, "c=@says-c-adapter"))
    with pytest.raises(RequestError, match="only 'one', 'two' and 'one:c'") as caught:
        catalogue.meant("one:x")
    assert caught.value.status == 404
    assert catalogue.meant("llama3:8b").name == "one" == catalogue.meant("two:8b").name


@pytest.mark.parametrize(
    ("adapters", "said"),
    [
        (["c=@nowhere"], r"c=.*nowhere: there is no adapter folder"),
        (["c=@one"], "is not an adapter of mlx-lm"),
        (["three:c=@says-c-adapter"], "one of one, two as BASE, got 'three:c="),
        (["a b=@says-c-adapter"], "NAME of letters"),
        (["=@says-c-adapter"], "NAME of letters"),
        (["c=@says-c-adapter", "one:c=@says-d-adapter"], "one:c is there already"),
        (["@says-c-adapter"], "belongs to one model, but there are several"),
    ],
)
def test_what_is_no_adapter_is_refused_before_anything_is_loaded(
    adapters: list[str], said: str, shelf: Path
) -> None:
    with pytest.raises(OptionError, match=said) as caught:
        Catalogue.of(settings_of(shelf, *adapters))
    assert caught.value.field == "adapter"


def test_an_adapter_without_a_name_is_that_of_the_only_model(shelf: Path) -> None:
    plain = str(shelf / "says-c-adapter")
    assert Settings(adapters=(plain,)).own_adapter == plain
    assert Settings(adapters=(f"c={plain}",)).own_adapter is None
    with pytest.raises(OptionError, match=r"takes no others: give .*says-c-adapter a name"):
        Settings(adapters=(plain, f"c={plain}"))


# ---- what clients see -----------------------------------------------------------------------


def test_a_model_and_its_adapters_answer_side_by_side(shelf: Path) -> None:
    async def test(server: Server) -> None:
        assert await server.states() == {
            "one": "loaded",
            "two": "unloaded",
            "one:c": "unloaded",
            "one:d": "unloaded",
        }
        names = ["one:d", None, "one:c", "two", "one", "one:c"] * 3
        texts = await asyncio.gather(*(server.said(name) for name in names))
        assert texts == ["ddd", "aaa", "ccc", "bbb", "aaa", "ccc"] * 3
        assert set((await server.states()).values()) == {"loaded"}
        answer = (await server.say("one:c")).json()
        assert answer["model"] == "one:c"
        assert (await server.say("one:x")).status_code == 404
        [listed] = [
            each
            for each in (await server.http.get("/v1/models")).json()["data"]
            if each["id"] == "one:c"
        ]
        assert listed["parent"] == "one" and listed["max_model_len"] == 4096
        base, adapter = (server.service.fleet.members[name] for name in ("one", "one:c"))
        table = (shelf / "says-c-adapter" / "adapters.safetensors").stat().st_size
        assert 0 < adapter.weights < table < base.weights

    settings = settings_of(shelf, "c=@says-c-adapter", "d=@says-d-adapter")
    run(test, models=settings.models, adapters=settings.adapters)


def test_the_only_model_may_have_adapters(shelf: Path) -> None:
    async def test(server: Server) -> None:
        assert await server.said("one:c") == "ccc"
        assert await server.said("anything") == "aaa"

    adapter = f"c={shelf}/says-c-adapter"
    run(test, models=(str(shelf / "one"),), adapters=(adapter,), draft="ngram")


@pytest.mark.slow
def test_an_adapter_that_is_unloaded_gives_its_memory_back(shelf: Path) -> None:
    async def test(server: Server) -> None:
        fleet = server.service.fleet
        left = []
        for _ in range(2):
            assert await server.said("one:c", prompt="x" * 300)
            assert fleet.members["one:c"].weights > 0
            fleet.dismiss(fleet.members["one:c"])
            await server.until(lambda: fleet.members["one:c"].weights == 0)
            left.append(mx.get_active_memory())
        assert left[1] <= left[0]
        assert await server.said("one") == "aaa"

    adapter = f"c={shelf}/says-c-adapter"
    run(test, models=(str(shelf / "one"),), adapters=(adapter,))


def test_an_adapter_of_another_model_says_why_and_harms_nobody(shelf: Path, tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "wide", shelf / "one", width=64)

    async def test(server: Server) -> None:
        answer = await server.say("one:wide")
        assert answer.status_code == 503 and "does not fit the model" in answer.text
        assert await server.said("one") == "aaa"
        base = server.service.fleet.members["one"]
        assert not base.sharers and not base.users

    run(test, models=(str(shelf / "one"),), adapters=(f"wide={folder}",))
