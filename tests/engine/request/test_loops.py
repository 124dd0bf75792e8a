"""Loops: what is taken back, what stays, and how a text ends."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import Regex
from mlxgen.engine.history import History
from mlxgen.engine.request.objections import HELD, repeated
from mlxgen.text import TextDecoder, Transcript
from mlxgen.tokens import Token
from tests.fakes.chatting import Chatter
from tests.fakes.speaking import PROMPT, Speaker, endless

from ...effort import tries
from .kit import folded, in_every_way, in_session

TURN = "the cat sat down. "
END = "! The end."
ASKED = [{"role": "user", "content": "x"}]


def parrot(turn: str = TURN, *, way_out: str = "!") -> Speaker:
    """It says ``turn`` for ever; only if it has to say something else, it comes to the end, or to
    ``turn`` again if there is no such ``way_out``."""

    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        text = speaker.text(generated)
        if way_out and way_out in text:
            left = END[len(text) - text.index(way_out) :]
            return [ord(left[0])] if left else [speaker.end]
        said = turn * (2 + len(text) // len(turn))
        return [ord(said[len(text)]), *map(ord, way_out or "#%&+=~^")]

    return Speaker([], say)


@pytest.mark.parametrize("options", [{}, {"stop": ["zz", "down!"]}, {"banned": ["zz"]}])
def test_a_text_that_repeats_itself_goes_another_way(options: dict[str, Any]) -> None:
    options = {"max_tokens": 150, **options}
    plain = parrot().lm.generate(PROMPT, **options)
    assert (plain.text, plain.usage.loops) == ((TURN * 9)[:150], 0)
    result = parrot().lm.generate(PROMPT, loops="take back", **options)
    assert result.text == TURN * 2 + END  # the third turn was held, and the others delivered
    assert (result.finish_reason, result.usage.loops, result.usage.looped) == ("stop", 1, "")
    assert result.usage.rewound_tokens <= len(TURN) + 4
    speaker = parrot()
    assert in_every_way(speaker, loops="take back", **options)[0] == result.text
    assert in_session(speaker, loops="take back", **options)[0] == result.text


def test_where_text_can_be_retracted_it_goes_back_to_the_second_turn() -> None:
    options: dict[str, Any] = {"loops": "take back", "allow_retract": True, "max_tokens": 200}
    chunks = list(parrot().lm.stream(PROMPT, **options))
    assert folded(chunks) == TURN + END == in_every_way(parrot(), **options)[0]
    assert max(chunk.retract for chunk in chunks) >= 2 * len(TURN)
    [rejected] = [r for chunk in chunks for r in chunk.rejected]
    assert (rejected.reason, rejected.token) == ("loop", ord("t"))
    assert sorted(rejected.by) == sorted(TURN)


def test_stop_ends_it_and_says_why() -> None:
    result = parrot().lm.generate(PROMPT, loops="stop", max_tokens=200)
    assert (result.text, result.finish_reason, result.stop) == (TURN * 2, "stop", None)
    assert sorted(result.usage.looped) == sorted(TURN)
    for least in ({"min_tokens": 100}, {"ignore_eos": True}):  # but it must be long
        result = parrot(way_out="").lm.generate(PROMPT, loops="stop", max_tokens=100, **least)
        assert len(result.tokens) == 100
    options: dict[str, Any] = {"filters": [Regex("[a-z. ]*1")], "loops": "stop", "max_tokens": 200}
    result = parrot(way_out="").lm.generate(PROMPT, **options)  # and is not valid yet
    assert result.finish_reason == "length" and result.usage.looped


def test_after_a_few_ways_that_lead_back_it_ends() -> None:
    result = parrot(way_out="").lm.generate(PROMPT, loops="take back", max_tokens=2000)
    assert result.finish_reason == "stop" and result.usage.looped
    assert 1 < result.usage.loops < 10 and len(result.tokens) < 200
    assert result.usage.rewound_tokens <= len(result.tokens) // 2 + 256


@pytest.mark.parametrize(
    ("turn", "stays"),
    [("| 0 | 1 |\n", 250), ("-", 250), ("0, 0, 0, 0,\n", 250), ("null, ", 60), ("<td></td>", 60)]
    + [(blank, 60) for blank in ("\n", " ", "\n \n")],
)
def test_patterns_of_a_table_or_blank_lines_stay_but_not_for_ever(turn: str, stays: int) -> None:
    lm = parrot(turn).lm
    result = lm.generate(PROMPT, loops="take back", max_tokens=stays)
    assert (result.text, result.usage.loops) == ((turn * stays)[:stays], 0)
    result = lm.generate(PROMPT, loops="take back", max_tokens=400)
    assert result.usage.loops == 1 and result.text.endswith(END)
    assert not turn.isspace() or len(result.text) < 70 + len(END)


LIST = "".join(f"{n}. The animal of the number {n} is a cat.\n" for n in range(1, 30))
CODE = "```python\n" + "shapes.append(None)\n" * 10 + "```\nThat is it."


@pytest.mark.parametrize(
    ("said", "asked"), [(LIST, "x"), (CODE, "x"), (TURN * 8 + ".", TURN * 8)], ids=str.split
)
def test_lists_code_and_what_stands_in_the_prompt_stay(said: str, asked: str) -> None:
    lm = Chatter(lambda message: said).lm
    messages = [{"role": "user", "content": asked}]
    result = lm.generate(messages, loops="take back", max_tokens=None)
    assert (result.text, result.usage.loops) == (said, 0)
    more = Chatter(lambda message: TURN * 40).lm
    result = more.generate(messages, loops="stop", max_tokens=None)
    if asked != "x":
        assert result.text == TURN * 10  # two more: what repeats is taken back if it is held


def test_thinking_that_repeats_itself_goes_another_way_and_then_ends() -> None:
    chatter = Chatter(lambda message: "<think>" + "I am not sure yet. " * 40, thinks=True)
    script, mark = chatter.model.script, chatter.lm.vocabulary.encode("</think>")

    def say(history: tuple[int, ...]) -> Any:
        if mark[0] in history:
            said = chatter.lm.vocabulary.decode(history).split("</think>")[-1]
            return [b"Yes."[len(said)]] if len(said) < 4 else [chatter.end]
        wanted = list(script(history)) if len(history) < 400 else [ord("?")]
        return [*wanted, ord("I"), ord("z")]

    chatter.model.script = say
    result = chatter.lm.generate(ASKED, loops="take back", max_tokens=None)
    assert result.text.endswith("</think>Yes.") and result.text.count("</think>") == 1
    assert (result.usage.loops, result.usage.looped) == (2, "")


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_what_filters_want_comes_and_what_comes_instead_fits_them(draft: str) -> None:
    options: dict[str, Any] = {"loops": "take back", "draft": draft}
    wanted = [Regex(r"(the cat sat down\. ){20}")]
    result = parrot().lm.generate(PROMPT, filters=wanted, max_tokens=None, **options)
    assert (result.text, result.usage.loops) == (TURN * 20, 0)
    filters = [Regex(r"(the cat (sat|lay) down\. )*(! The end\.)?")]
    result = parrot().lm.generate(PROMPT, filters=filters, max_tokens=200, **options)
    assert result.text.endswith(END) and result.usage.loops
    filters = [Regex(r"(the cat (sat|lay) down\. ){8}")]  # it may go another way in one place only
    result = parrot(way_out="").lm.generate(PROMPT, filters=filters, max_tokens=None, **options)
    assert "lay" in result.text and result.text.count("cat") == 8 and result.usage.loops


def test_a_consumer_may_take_it_back_further_and_it_is_found_again() -> None:
    with parrot().lm.stream(PROMPT, loops="take back", max_tokens=200) as stream:
        list(stream)
        stream.rewind(to=5)
        assert stream.text + "".join(chunk.text for chunk in stream) == TURN * 2 + END


def test_a_text_without_a_loop_comes_as_soon_as_it_is_drawn() -> None:
    passes = []
    for loops in ("off", "take back"):
        speaker = endless()
        next(speaker.lm.stream(PROMPT, loops=loops, max_tokens=50))
        passes.append(speaker.model.passes)
    assert passes[0] == passes[1]


def shortest(tokens: list[Token]) -> tuple[int, int]:
    """The shortest period with which some tokens end, and how many of them have it."""
    for period in range(1, len(tokens) // 2 + 1):
        run = period
        while run < len(tokens) and tokens[-1 - run] == tokens[-1 - run + period]:
            run += 1
        if run >= max(2 * period, HELD):
            return period, run
    return 0, 0


@cache
def one_parrot() -> Speaker:
    return parrot()


@settings(max_examples=tries(2000), deadline=None)
@given(
    st.lists(st.integers(97, 99), max_size=12),
    st.lists(st.integers(97, 99), min_size=1, max_size=12),
    st.integers(0, 5),
    st.integers(0, 3),
)
def test_the_shortest_period_is_found(
    before: list[Token], turn: list[Token], times: int, more: int
) -> None:
    vocabulary = one_parrot().vocabulary
    tokens = before + turn * times + turn[:more]
    tokens = tokens[: len(tokens) - len(tokens) % 4]
    transcript = Transcript(TextDecoder(vocabulary))
    for token in tokens:
        transcript.advance(token)
    history = History([*PROMPT, *tokens])
    found = repeated(None, history, len(PROMPT), transcript, vocabulary)
    assert (found.period, found.run) == shortest(tokens)
