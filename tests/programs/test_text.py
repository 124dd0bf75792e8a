"""What a program of one branch writes: fixed and generated text, choices, labels."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

import mlxgen
from mlxgen import (
    Branch,
    DeadEndError,
    FilterError,
    GrammarError,
    Guide,
    OptionError,
    Program,
    StateError,
)
from mlxgen.programs.guide import ProgramFunction
from tests.fakes import sentencepiece_tokenizer
from tests.fakes.controllers import Recited, finish
from tests.fakes.speaking import END, PROMPT, Speaker, reciter
from tests.programs.helpers import carry_out, letters, text_of

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}},
    "required": ["name"],
    "additionalProperties": False,
}


def test_fixed_tokens_are_appended_as_they_are() -> None:
    async def program(g: Guide) -> None:
        await g.fixed([104, 105])
        await g.fixed("")
        await g.fixed([])

    assert text_of(program) == "hi"


def test_a_forgotten_await_is_an_error_that_names_the_line() -> None:
    async def dropped(g: Guide) -> None:
        g.fixed("x")
        await g.gen(max_tokens=1)

    async def kept(g: Guide) -> None:
        await g.fixed("x")
        text = g.gen(max_tokens=1)  # noqa: F841

    async def nested(g: Guide) -> None:
        g.choose(["a", "b"])

    for program, line in ((dropped, 1), (kept, 2), (nested, 1)):
        place = rf"test_text\.py, line {program.__code__.co_firstlineno + line}: .* not awaited"
        with pytest.raises(StateError, match=place):
            carry_out(program)


def test_the_error_that_a_forgotten_await_led_to_says_so() -> None:
    async def program(g: Guide) -> int:
        return len(g.gen(max_tokens=1))  # type: ignore[arg-type]

    with pytest.raises(TypeError) as error:
        carry_out(program)
    assert any("line" in note and "not awaited" in note for note in error.value.__notes__)


def test_what_is_asked_for_may_be_awaited_later() -> None:
    async def program(g: Guide) -> None:
        last, first = g.fixed("b"), g.fixed("a")
        await first
        await last

    assert text_of(program) == "ab"


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda g: g.backtrack(5), r"label: expected a label, got 5; .* g\.label\(\)"),
        (lambda g: g.fixed(5), "text: .* got 5"),
        (lambda g: g.fixed(["a"]), "text: .* 'a'"),
        (lambda g: g.fixed(g.gen()), "text: .* await it"),
        (lambda g: g.gen(stop=5), "stop: .* got 5"),
        (lambda g: g.gen(max_tokens="a"), "max_tokens: expected .*'a'"),
        (lambda g: g.choose(5), "filters: .* 5"),
        (lambda g: g.token("ab"), "tokens: .* 'ab'"),
        (lambda g: g.token([1.5]), r"tokens: .* 1\.5"),
        (lambda g: g.fork(2.5), r"fork: .* 2\.5"),
        (lambda g: g.tokenize(5), "text: .* 5"),
        (lambda g: g.tokens_like("("), r"pattern: .*\("),
    ],
)
def test_what_is_wrong_with_an_argument_is_said_with_its_name(ask: Any, field: str) -> None:
    async def program(g: Guide) -> None:
        await ask(g)

    with pytest.raises(OptionError, match=field):
        carry_out(program)


def test_text_ends_before_a_stop_which_is_taken_back_from_the_history() -> None:
    async def program(g: Guide) -> str:
        text = await g.gen(stop=["ef", "z"])
        assert g.text == "abcd"
        await g.fixed("!")
        return text

    run = carry_out(program)
    assert (run.controller.value, run.results[()].text) == ("abcd", "abcd!")
    assert run.results[()].tokens == tuple(b"abcd!")


def test_a_stop_inside_a_token_leaves_the_text_before_it() -> None:
    speaker = reciter(["a", "bcd", "x"], extra=["bc"])

    async def program(g: Guide) -> str:
        text = await g.gen(stop="d")
        await g.fixed("!")
        return text

    run = carry_out(program, speaker)
    assert run.controller.value == "abc"
    assert run.results[()].tokens == (ord("a"), speaker.token("bc"), ord("!"))


def test_a_stop_after_a_character_split_over_tokens() -> None:
    smile = "😀".encode()
    speaker = reciter([*smile[:2], smile[2], smile[3], *b"ab"])

    async def program(g: Guide) -> list[str]:
        return [await g.gen(stop="b"), await g.gen(stop="a", max_tokens=0)]

    run = carry_out(program, speaker)
    assert run.controller.value == ["😀a", ""] and run.results[()].text == "😀a"


def test_an_end_token_ends_the_piece_and_not_the_program() -> None:
    speaker = reciter(["a", END, "c", "d", END])

    async def program(g: Guide) -> list[str]:
        one = await g.gen()
        await g.fixed("-")
        return [one, await g.gen()]

    run = carry_out(program, speaker)
    assert run.controller.value == ["a", "cd"]
    assert run.results[()].text == "a-cd"
    assert run.results[()].usage.rewound_tokens == 0


def test_a_limit_ends_a_piece_exactly() -> None:
    async def program(g: Guide) -> list[str]:
        return [await g.gen(max_tokens=n) for n in (0, 1, 3)]

    assert carry_out(program).controller.value == ["", "a", "bcd"]


def test_a_limit_counts_what_a_filter_forces() -> None:
    async def program(g: Guide) -> str:
        return await g.gen(regex="hello there", max_tokens=4)

    assert carry_out(program).controller.value == "hell"


def test_a_piece_matches_its_filters() -> None:
    async def program(g: Guide) -> dict[str, Any]:
        one = await g.gen(mlxgen.JsonSchema(SCHEMA))
        await g.fixed("; ")
        two = await g.gen(lark='start: "<" /[a-c]{3}/ ">"')
        await g.fixed("; ")
        three = await g.gen(regex="[0-9a-z]{4}", lark="start: /[a-f]+/")
        return {"json": json.loads(one), "lark": two, "both": three}

    run = carry_out(program)
    value = run.controller.value
    assert set(value["json"]) == {"name"}
    assert re.fullmatch("<[a-c]{3}>", value["lark"])
    assert re.fullmatch("[a-f]{4}", value["both"])
    assert len(run.results[()].text) == len(run.results[()].tokens)


def test_a_substring_is_copied_from_the_text() -> None:
    source = "the quick brown fox"

    async def program(g: Guide) -> str:
        return await g.substring(source, max_tokens=9)

    found = carry_out(program).controller.value
    assert found and found in source


def test_a_temperature_holds_for_its_piece() -> None:
    speaker = Speaker([], lambda self, generated: {ord("a"): 1.0, ord("b"): 0.9})

    async def program(g: Guide) -> list[str]:
        return [await g.gen(max_tokens=20, temperature=t) for t in (0.0, 5.0)]

    cold, warm = carry_out(program, speaker, seed=1).controller.value
    assert set(cold) == {"a"} and set(warm) == {"a", "b"}


def test_single_tokens_are_sampled_of_a_set() -> None:
    async def program(g: Guide) -> list[Any]:
        return [
            await g.token(b"xyz"),
            await g.token(g.token_set(b"xyz") - b"x"),
            await g.token(),
            await g.token(g.vocabulary.eos),
            await g.token(g.tokens_like("[0-9]")),
        ]

    run = carry_out(program)
    assert run.controller.value == [*b"xyz", None, ord("0")]
    assert run.results[()].text == "xyz0"


def test_a_label_whose_place_was_taken_back_is_refused() -> None:
    async def program(g: Guide) -> None:
        start = g.label()
        await g.fixed("abc")
        label = g.label()
        await g.backtrack(start)
        await g.backtrack(start)
        await g.fixed("wxyz")
        await g.backtrack(label)

    with pytest.raises(StateError, match="label"):
        text_of(program)


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


def test_errors_of_a_step_are_raised_where_it_is_awaited() -> None:
    async def program(g: Guide) -> str:
        with pytest.raises(GrammarError):
            await g.gen(regex="(")
        with pytest.raises(DeadEndError):
            await g.gen(regex="[0-9]", lark="start: /[a-z]/")
        with pytest.raises(OptionError):
            await g.gen(max_tokens=-1)
        with pytest.raises(OptionError):
            await g.choose([])
        return await g.gen(max_tokens=1)

    assert carry_out(program).controller.value == "a"


def test_what_is_not_a_program_is_refused() -> None:
    with pytest.raises(OptionError):
        Program("no function")  # type: ignore[arg-type]

    def function(g: Guide) -> Any:
        return 3

    with pytest.raises(OptionError, match="async"):
        text_of(function)


def test_only_what_the_guide_gives_can_be_awaited() -> None:
    class Other:
        def __await__(self) -> Any:
            yield "something else"

    async def program(g: Guide) -> None:
        await Other()

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


def test_a_program_is_used_again_with_variables_of_its_own() -> None:
    async def function(g: Guide) -> str:
        g.append("x", "!")
        return g.get("x") or ""

    program = Program(function, {"x": "hi"})
    for _ in range(2):
        run = letters().lm.control(PROMPT, program)
        finish(run)
        assert run.controller.value == "hi!"


def test_filters_of_the_generation_hold_for_the_program() -> None:
    async def program(g: Guide) -> list[str]:
        return [await g.gen(regex="[a-z]", max_tokens=1) for _ in range(2)]

    run = carry_out(program, filters=mlxgen.Regex("x[0-9b]*!|k[a-z]+!"))
    assert run.controller.value == ["k", "l"]


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


def test_fixed_text_is_joined_by_what_is_generated_after_it() -> None:
    async def program(g: Guide) -> tuple[str, str]:
        await g.fixed("def f():")
        await g.fixed("\n")
        body = await g.gen()
        return body, g.text

    run = carry_out(program, indented())
    body = "    return 1"
    assert run.controller.value == (body, "def f():\n" + body)
    assert indented().token("\n    ") in run.results[()].tokens

    async def within(g: Guide) -> str:
        await g.fixed("def f():\n    re")
        return await g.gen(stop="1")

    run = carry_out(within, indented())
    assert run.controller.value == "turn "
    assert run.results[()].text == "def f():\n    return "


@pytest.mark.parametrize("limit", [{"stop": " "}, {"max_tokens": 0}, {"max_tokens": 1}])
def test_fixed_text_stays_however_early_what_is_generated_ends(limit: dict[str, Any]) -> None:
    async def program(g: Guide) -> str:
        await g.fixed("def f():\n")
        return await g.gen(**limit)

    run = carry_out(program, indented())
    assert run.results[()].text == "def f():\n" + run.controller.value


def test_fixed_text_is_not_joined_if_the_filters_do_not_allow_it() -> None:
    async def program(g: Guide) -> str:
        await g.fixed("def f():\n")
        return await g.gen(regex="pass")

    assert text_of(program, indented()) == "def f():\npass"


@pytest.mark.parametrize("speaker", [letters, indented])
def test_a_label_stays_where_it_is_though_the_text_before_it_is_joined(
    speaker: Callable[[], Speaker],
) -> None:
    seen: list[str] = []

    async def program(g: Guide) -> tuple[str, str]:
        await g.fixed("def ")
        earlier = g.label()
        await g.fixed("f():\n")
        start = g.label()
        first = await g.gen(max_tokens=3)
        await g.backtrack(start)
        seen.append(g.text)
        await g.backtrack(start)
        again = await g.gen(max_tokens=3)
        await g.backtrack(earlier)
        seen.append(g.text)
        await g.fixed("g():\n")
        await g.gen(max_tokens=3)
        with pytest.raises(StateError, match="label"):
            await g.backtrack(start)
        return first, again

    run = carry_out(program, speaker())
    first, again = run.controller.value
    assert first == again == ("abc" if speaker is letters else "    return ")
    assert seen == ["def f():\n", "def "]
    assert run.results[()].text == "def g():\n" + first


def test_fixed_tokens_are_never_joined() -> None:
    async def program(g: Guide) -> str:
        await g.fixed(g.tokenize("def f():\n"))
        return await g.gen()

    assert text_of(program, indented()) == "def f():\n"


def test_a_fork_after_fixed_text_joins_it_in_each_branch() -> None:
    async def program(g: Guide) -> str:
        await g.fixed("def f():\n")
        fork = await g.fork(2)
        return f"{fork.index}{await g.gen()}"

    run = carry_out(program, indented())
    assert {result.text for result in run.results.values()} == {"def f():\n    return 1"}


# ---- a prompt that is healed


async def generated(g: Guide) -> tuple[str, str]:
    return await g.gen(), g.text


async def fixed_first(g: Guide) -> tuple[str, str]:
    await g.fixed("    ret")
    return await g.gen(), g.text


async def fixed_tokens_first(g: Guide) -> tuple[str, str]:
    await g.fixed(g.tokenize("    "))
    return await g.gen(), g.text


async def sampled_first(g: Guide) -> tuple[str, str]:
    await g.token()
    return await g.gen(), g.text


async def forked_first(g: Guide) -> tuple[str, str]:
    fork = await g.fork(2)
    if fork.index:
        await g.fixed("    ")
    return await g.gen(), g.text


@pytest.mark.parametrize(
    "program", [generated, fixed_first, fixed_tokens_first, sampled_first, forked_first]
)
def test_a_healed_prompt_is_joined_and_is_no_part_of_the_text(program: ProgramFunction) -> None:
    speaker = indented(prompt_length=0)
    run = speaker.lm.control("def f():\n", Program(program), heal=True, max_tokens=40)
    texts = finish(run)
    assert set(texts.values()) == {"    return 1"}
    for name, result in run.results.items():
        text, whole = run.controller_of(name).value  # type: ignore[attr-defined]
        assert whole == "    return 1" and whole.endswith(text)
        spelled = speaker.vocabulary.decode(result.tokens)
        assert spelled == "\n    return 1"
    joined = speaker.token("\n    ") in run.results[()].tokens
    assert joined == (program is not fixed_tokens_first)


def test_the_end_of_a_prompt_stays_if_the_filters_do_not_join_it() -> None:
    async def program(g: Guide) -> str:
        return await g.gen(regex="pass")

    run = indented(prompt_length=0).lm.control("def f():\n", Program(program), heal=True)
    assert finish(run) == {(): "pass"}


def test_a_controller_may_sample_only_what_heals_the_prompt() -> None:
    speaker = indented(prompt_length=0)
    free = Branch(sample_mask=range(speaker.lm.vocab_size))
    run = speaker.lm.control("def f():\n", Recited([free]), heal=True)
    assert finish(run) == {(): "    return 1"}
    run = speaker.lm.control("def f():\n", Recited([Branch(ff_tokens=[[65]])]), heal=True)
    with pytest.raises(FilterError, match="healing"):
        finish(run)
