"""What a program writes: a table of programs and their texts, and what no table can tell."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import mlxgen
from mlxgen import (
    Branch,
    FilterError,
    Guide,
    Label,
    OptionError,
    Program,
    StateError,
)
from tests.fakes import sentencepiece_tokenizer
from tests.fakes.controllers import Recited, finish
from tests.fakes.speaking import PROMPT, Speaker, reciter, talker
from tests.programs.helpers import carry_out, letters, run_over_errors, text_of

TABLE = Path(__file__).parent.parent / "data" / "programs.jsonl"


def indented(**options: Any) -> Speaker:
    """It knows a line end and four spaces as one token, and ends at once after a line end alone."""

    def say(self: Speaker, generated: list[int]) -> list[int]:
        text = self.text(generated)
        if text.endswith(":"):
            return [self.token("\n    "), ord("\n")]
        if text.endswith("\n    "):
            return [self.token("return"), self.end]
        if text.endswith("return"):
            return [ord(" ")]
        return [ord("1")] if text.endswith(" ") else [self.end]

    return Speaker(["\n    ", "return"], say, **options)


def speaker_of(model: Any, **options: Any) -> Speaker:
    if model in (None, "indented"):
        return indented(**options) if model else letters(**options)
    return talker(model["choices"]) if "choices" in model else reciter(**model)


def function_of(steps: list[list[Any]]) -> Callable[[Guide], Coroutine[Any, Any, list[Any]]]:
    """The program of a case; it returns what its branch got."""

    async def program(g: Guide) -> list[Any]:
        got: list[Any] = []
        labels: dict[str, tuple[Label, str]] = {}
        number = 0
        tasks: Any = ()
        for what, *given in steps:
            match what:
                case "fixed":
                    await g.fixed(*given)
                case "gen":
                    got.append(await g.gen(**given[0]))
                case "choose":
                    got.append(await g.choose(*given))
                case "token":
                    got.append(await g.token(*given))
                case "label":
                    labels[given[0]] = g.label(), g.text
                case "back":
                    await g.backtrack(labels[given[0]][0])
                    assert g.text == labels[given[0]][1]
                case "lost":
                    with pytest.raises(StateError, match="label"):
                        await g.backtrack(labels[given[0]][0])
                case "fork":
                    fork = await g.fork(*given)
                    number = fork.index
                    assert len(fork.tasks) == given[0]
                case "number":
                    await g.fixed(str(number))
                case "start":
                    tasks = await g.fork([function_of(each) for each in given])
                case "wait":
                    got.append(await g.wait(*tasks))
                case "wait in vain":
                    with pytest.raises(StateError, match=given[0]):
                        await g.wait(*tasks)
                case "raise":
                    raise LookupError(*given)
                case "set":
                    g.set(*given)
                case "append":
                    got.append(g.append(*given))
                case "swap":
                    got.append(g.compare_and_swap(*given))
                case "until":
                    await g.until(given[0], given[1].__eq__)
                case "fails":  # the error and its field, and what is asked of the guide
                    kind, field, asked, *rest = given
                    more = rest.pop() if rest and isinstance(rest[-1], dict) else {}
                    with pytest.raises(getattr(mlxgen, kind)) as error:
                        await getattr(g, asked)(*rest, **more)
                    assert field is None or error.value.field == field
                case _:
                    raise ValueError(what)
        return got

    return program


def test_what_goes_wrong_in_a_branch_is_its_error_and_told_to_who_waits_for_it() -> None:
    """A deadlock, too, which says who waits for what."""
    child: list[Any] = ["start", [["gen", {"max_tokens": 2}], ["raise", "nothing there"]]]
    told = ["wait in vain", "branch .1,. failed: LookupError: nothing there"]
    steps: list[list[Any]] = [child, told, ["fork", 2], ["fixed", "went on "], ["number"]]
    run, (error,) = run_over_errors(function_of(steps))
    assert isinstance(error, LookupError) and list(run.errors) == [(1,)]
    assert [run.results[branch].text for branch in ((), (0, 1))] == ["went on 0", "went on 1"]
    run, (error,) = run_over_errors(function_of([["start", [["until", "x", "y"]]], ["wait"]]))
    assert "() for branch (1,); (1,) for variable 'x'" in str(error)
    assert isinstance(error, StateError) and set(run.errors) == {(), (1,)}


def test_a_program_writes_what_the_table_says() -> None:
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        heals = {"prompt_length": 0} if "heal" in case else {}
        speaker = speaker_of(case.get("model"), **heals)
        prompt = "def f():\n" if heals else PROMPT
        options: Any = {"heal": True, "max_tokens": 40} if heals else {}
        run = speaker.lm.control(prompt, Program(function_of(case["steps"])), **options)
        texts = {" ".join(map(str, branch)): text for branch, text in finish(run).items()}
        assert texts.pop("", "") == case["text"], case["name"]
        assert texts == case.get("others", {}), case["name"]
        result = run.results[()]
        assert run.controller.value == case.get("got", run.controller.value), case["name"]
        assert len(result.tokens) == case.get("tokens", len(result.tokens)), case["name"]
        if "joined" in case:
            assert (speaker.token("\n    ") in result.tokens) == case["joined"], case["name"]


def test_a_forgotten_await_is_an_error_that_names_the_line() -> None:
    async def dropped(g: Guide) -> None:
        g.fixed("x")
        await g.gen(max_tokens=1)

    async def kept(g: Guide) -> None:
        await g.fixed("x")
        text = g.gen(max_tokens=1)  # noqa: F841

    async def failing(g: Guide) -> int:
        return len(g.gen(max_tokens=1))  # type: ignore[arg-type]

    async def given(g: Guide) -> None:
        await g.fixed(g.gen())  # type: ignore[arg-type]

    for program, line in ((dropped, 1), (kept, 2), (failing, 1)):
        with pytest.raises((StateError, TypeError)) as error:
            carry_out(program)
        told = " ".join([str(error.value), *error.value.__notes__])
        assert f"test_text.py, line {program.__code__.co_firstlineno + line}" in told
        assert "not awaited" in told
    with pytest.raises(OptionError, match="await it"):
        carry_out(given)


def test_what_is_asked_for_may_be_awaited_later() -> None:
    async def program(g: Guide) -> None:
        last, first = g.fixed("b"), g.fixed("a")
        await first
        await last
        assert await g.substring("the quick brown fox", max_tokens=9) in "the quick brown fox"

    assert text_of(program).startswith("ab")


def test_a_temperature_holds_for_its_piece() -> None:
    speaker = Speaker([], lambda self, generated: {ord("a"): 1.0, ord("b"): 0.9})

    async def program(g: Guide) -> list[str]:
        return [await g.gen(max_tokens=20, temperature=t) for t in (0.0, 5.0)]

    cold, warm = carry_out(program, speaker, seed=1).controller.value
    assert set(cold) == {"a"} and set(warm) == {"a", "b"}


def test_the_prompt_cannot_be_reached_by_labels_but_is_seen() -> None:
    async def program(g: Guide) -> None:
        assert g.tokens == tuple(PROMPT) and g.text == ""
        await g.fixed("ab")
        assert g.tokens == (*PROMPT, *b"ab")
        assert g.text == "ab" and g.branch == () and g.vocab_size == 257
        assert g.tokenize("xy") == list(b"xy")

    text_of(program)


def test_logprobs_add_up_if_they_are_reported() -> None:
    seen = []

    async def program(g: Guide) -> None:
        await g.fixed("a")
        await g.gen(max_tokens=2)
        seen.append(g.logprob)
        label = g.label()
        await g.gen(max_tokens=3)
        await g.backtrack(label)
        await g.gen(max_tokens=1)
        seen.append(g.logprob)

    run = carry_out(program, top_logprobs=0)
    sampled = [c.logprob for c in run.results[()].chunks if c.logprob is not None]
    assert len(sampled) == 3 and seen[0] == pytest.approx(sum(sampled[:2]))
    assert seen[1] == pytest.approx(sum(sampled))


def test_what_is_no_program_and_what_no_guide_gives_are_refused() -> None:
    class Other:
        def __await__(self) -> Any:
            yield "something else"

    async def program(g: Guide) -> None:
        await Other()

    def function(g: Guide) -> Any:
        return 3

    with pytest.raises(OptionError):
        Program("no function")  # type: ignore[arg-type]
    for variables in ([("a", "b")], {"a": 5}):
        with pytest.raises(OptionError):
            letters().lm.control(PROMPT, Program(program, variables))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="async"):
        text_of(function)
    with pytest.raises(StateError, match="something else"):
        text_of(program)


def test_a_budget_ends_a_program_where_it_stands_and_its_blocks_are_left() -> None:
    left = []

    async def program(g: Guide) -> None:
        try:
            await g.gen()
        finally:
            left.append(g.text)

    run = carry_out(program, max_tokens=5)
    assert left == ["abcd"]  # it was not asked again after the last token
    assert run.results[()].text == "abcde" and run.results[()].finish_reason == "length"
    assert run.controller.value is None


def test_a_program_is_used_again_with_its_variables_and_under_the_filters_of_a_generation() -> None:
    async def function(g: Guide) -> list[str]:
        got = [await g.gen(regex="[a-z]", max_tokens=1) for _ in range(2)]
        return [*got, g.append("x", "!")]

    program = Program(function, {"x": "hi"})
    for _ in range(2):
        run = letters().lm.control(PROMPT, program, filters=mlxgen.Regex("x[0-9b]*!|k[a-z]+!"))
        finish(run)
        assert run.controller.value == ["k", "l", "hi!"]


def test_the_first_piece_of_a_chat_answer_loses_its_space_as_the_text_does() -> None:
    tokenizer = sentencepiece_tokenizer()
    speaker = letters()
    vocabulary = mlxgen.Vocabulary.of(tokenizer)
    the = vocabulary.token_of(b" the")
    assert the is not None

    async def program(g: Guide) -> list[str]:
        return [await g.gen(max_tokens=1), await g.gen(regex=" the"), g.text]

    model = speaker.model
    model.vocab_size = vocabulary.size
    model.script = lambda history: [the]
    lm = mlxgen.LanguageModel(model, tokenizer)
    run = lm.control([{"role": "user", "content": "x"}], Program(program))
    finish(run)
    assert run.controller.value == ["the", " the", "the the"]
    assert run.results[()].text == "the the"


def test_a_controller_may_sample_only_what_heals_the_prompt() -> None:
    speaker = indented(prompt_length=0)
    free = Branch(sample_mask=range(speaker.lm.vocab_size))
    run = speaker.lm.control("def f():\n", Recited([free]), heal=True)
    assert finish(run) == {(): "    return 1"}
    run = speaker.lm.control("def f():\n", Recited([Branch(ff_tokens=[[65]])]), heal=True)
    with pytest.raises(FilterError, match="healing"):
        finish(run)
