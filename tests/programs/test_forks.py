"""Programs that fork, wait for one another, and share variables."""

from __future__ import annotations

from typing import Any

import pytest

from mlxgen import Guide, Program, StateError
from tests.fakes.controllers import finish
from tests.fakes.speaking import PROMPT
from tests.programs.helpers import carry_out, letters, run_over_errors


def texts(run: Any) -> dict[tuple[int, ...], str]:
    return {branch: result.text for branch, result in run.results.items()}


# ---- fork(n)


def test_a_copy_is_given_the_same_results_and_nothing_happens_twice() -> None:
    seen: list[Any] = []

    async def program(g: Guide) -> None:
        g.append("count", "x")
        one = await g.gen(max_tokens=2)
        label = g.label()
        await g.fixed("!!")
        await g.backtrack(label)
        two = (g.get("count"), g.compare_and_swap("flag", None, "up"), g.text, g.tokens[-1])
        g.set("last", two[2])
        await g.fork(2)
        g.append("count", "y")
        seen.append((one, two, g.text))

    run = carry_out(program)
    assert seen[0] == seen[1] == ("ab", ("x", True, "ab", ord("b")), "ab")
    assert run.controller.variables["count"] == "xyy"


@pytest.mark.parametrize("second", ["gen", "returned"])
def test_a_program_that_diverges_in_its_copy_is_an_error_of_that_branch(second: str) -> None:
    calls = []

    async def program(g: Guide) -> None:
        calls.append(1)
        if len(calls) == 1:
            await g.fixed("a")
        elif second == "returned":
            return
        else:
            await g.gen(max_tokens=1)
        await g.fork(2)

    run, (error,) = run_over_errors(program)
    assert isinstance(error, StateError)
    assert f"{second}, but had asked for fixed before" in str(error) and "diverged" in str(error)
    assert list(run.errors) == [(1,)] and run.results[()].finish_reason == "stop"


# ---- fork([f, g])


def test_the_guide_of_another_branch_is_refused() -> None:
    async def program(g: Guide) -> None:
        async def child(own: Guide) -> None:
            await g.fixed("x")

        await g.wait(*await g.fork([child]))

    _, errors = run_over_errors(program)
    assert "use the guide that the program was given" in str(errors[0])


# ---- waiting


@pytest.mark.parametrize("reason", ["length", "cancelled"])
def test_waiting_for_a_branch_that_ended_early_is_an_error(reason: str) -> None:
    async def child(g: Guide) -> None:
        await g.gen()

    async def program(g: Guide) -> str:
        tasks = await g.fork([child])
        with pytest.raises(StateError, match=f"branch .1,. ended before its program did: {reason}"):
            await g.wait(*tasks)
        return await g.gen(max_tokens=2)

    run = letters().lm.control(PROMPT, Program(program), max_tokens=4)
    next(run)
    if reason == "cancelled":
        run.leave((1,))
    finish(run)
    assert run.controller.value == "ab"


# ---- variables


def test_waiting_on_a_variable_takes_no_polling() -> None:
    looks = []

    async def writer(g: Guide) -> None:
        await g.gen(max_tokens=5)
        g.set("other", "x")
        g.set("word", "no")
        await g.gen(max_tokens=5)
        g.set("word", "yes")

    async def program(g: Guide) -> str:
        def is_yes(text: str) -> bool:
            looks.append(text)
            return text == "yes"

        await g.fork([writer])
        return await g.until("word", is_yes)

    run = carry_out(program)
    assert run.controller.value == "yes" and looks == ["no", "yes"]
