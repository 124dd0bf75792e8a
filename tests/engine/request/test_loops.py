"""Loops: what is taken back, what stays, and how a text ends."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.history import History
from mlxgen.engine.request.objections import HELD, repeated
from mlxgen.text import TextDecoder, Transcript
from mlxgen.tokens import Token
from tests.fakes.chatting import Chatter
from tests.fakes.speaking import PROMPT, Speaker, endless

from ...effort import tries
from ..kit import parrot

TURN = "the cat sat down. "
END = "! The end."
ASKED = [{"role": "user", "content": "x"}]


def test_after_a_few_ways_that_lead_back_it_ends() -> None:
    result = parrot(TURN, way_out="").lm.generate(PROMPT, loops="take back", max_tokens=2000)
    assert result.finish_reason == "stop" and result.usage.looped
    assert 1 < result.usage.loops < 10 and len(result.tokens) < 200
    assert result.usage.rewound_tokens <= len(result.tokens) // 2 + 256


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
    return parrot(TURN)


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
