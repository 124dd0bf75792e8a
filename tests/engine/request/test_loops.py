"""Loops, whichever way a text is asked for: what is taken back, what stays, and how it ends."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import OptionError, Regex, Session
from mlxgen.engine.chunk import Chunk
from mlxgen.engine.history import History
from mlxgen.engine.request.loops import HELD, UNKNOWN, repeated
from mlxgen.text import TextDecoder, Transcript
from mlxgen.tokens import Token
from tests.fakes.chatting import Chatter
from tests.fakes.speaking import PROMPT, Speaker

from ...effort import tries

TURN = "the cat sat down. "
END = "! The end."


def parrot(turn: str = TURN, *, before: str = "", way_out: str = "!", **options: Any) -> Speaker:
    """It says ``turn`` for ever; only if it has to say something else, it comes to the end, or to
    ``turn`` again if there is no such ``way_out``."""

    def say(speaker: Speaker, generated: list[Token]) -> list[Token]:
        text = speaker.text(generated)
        if way_out and way_out in text:
            left = END[len(text) - text.index(way_out) :]
            return [ord(left[0])] if left else [speaker.end]
        said = before + turn * (2 + len(text) // len(turn))
        return [ord(said[len(text)]), *map(ord, way_out or "#%&+=~^")]

    return Speaker([], say, **options)


def folded(chunks: Iterable[Chunk]) -> str:
    text = ""
    for chunk in chunks:
        text = text[: len(text) - chunk.retract] + chunk.text
    return text


def test_it_is_off_unless_asked_for() -> None:
    result = parrot().lm.generate(PROMPT, max_tokens=100)
    assert result.text == (TURN * 9)[:100]
    assert result.usage.loops == 0


def test_a_text_that_repeats_itself_goes_another_way() -> None:
    result = parrot().lm.generate(PROMPT, loops="take back", max_tokens=200)
    assert result.text == TURN * 2 + END  # the third turn was held, and the others delivered
    assert result.finish_reason == "stop"
    assert (result.usage.loops, result.usage.looped) == (1, "")
    assert result.usage.rewound_tokens <= len(TURN) + 4


def test_where_text_can_be_retracted_it_goes_back_to_the_second_turn() -> None:
    lm = parrot().lm
    chunks = list(lm.stream(PROMPT, loops="take back", allow_retract=True, max_tokens=200))
    assert folded(chunks) == TURN + END
    assert max(chunk.retract for chunk in chunks) >= 2 * len(TURN)
    [rejected] = [r for chunk in chunks for r in chunk.rejected]
    assert (rejected.reason, rejected.token) == ("loop", ord("t"))
    assert sorted(rejected.by) == sorted(TURN)


def test_stop_ends_it_and_says_why() -> None:
    result = parrot().lm.generate(PROMPT, loops="stop", max_tokens=200)
    assert result.text == TURN * 2
    assert result.finish_reason == "stop"
    assert result.stop is None
    assert sorted(result.usage.looped) == sorted(TURN)


def test_after_a_few_ways_that_lead_back_it_ends() -> None:
    speaker = parrot(way_out="")
    result = speaker.lm.generate(PROMPT, loops="take back", max_tokens=2000)
    assert result.finish_reason == "stop"
    assert 1 < result.usage.loops < 10
    assert result.usage.looped
    assert len(result.tokens) < 200
    assert result.usage.rewound_tokens <= len(result.tokens) // 2 + 256


def test_a_text_that_must_be_long_stays_long() -> None:
    for least in ({"min_tokens": 100}, {"ignore_eos": True}):
        result = parrot(way_out="").lm.generate(PROMPT, loops="stop", max_tokens=100, **least)
        assert len(result.tokens) == 100


@pytest.mark.parametrize(
    ("turn", "least"),
    [("| 0 | 1 |\n", 250), ("-", 250), ("0, 0, 0, 0,\n", 250), ("null, ", 60), ("<td></td>", 60)],
)
def test_patterns_of_a_table_or_a_matrix_stay_but_not_for_ever(turn: str, least: int) -> None:
    lm = parrot(turn).lm
    result = lm.generate(PROMPT, loops="take back", max_tokens=least)
    assert result.text == (turn * least)[:least]
    assert result.usage.loops == 0
    result = lm.generate(PROMPT, loops="take back", max_tokens=400)
    assert result.usage.loops == 1
    assert result.text.endswith(END)


@pytest.mark.parametrize("turn", ["\n", " ", "\n \n"])
def test_blank_lines_go_on_for_a_while_and_no_longer(turn: str) -> None:
    lm = parrot(turn).lm
    assert lm.generate(PROMPT, loops="take back", max_tokens=60).usage.loops == 0
    result = lm.generate(PROMPT, loops="take back", max_tokens=400)
    assert result.usage.loops == 1 and result.text.endswith(END)
    assert len(result.text) < 70 + len(END)


def test_lists_that_go_on_stay() -> None:
    said = "".join(f"{n}. The animal of the number {n} is a cat.\n" for n in range(1, 30))
    chatter = Chatter(lambda message: said)
    messages = [{"role": "user", "content": "x"}]
    result = chatter.lm.generate(messages, loops="take back", max_tokens=None)
    assert result.text == said
    assert result.usage.loops == 0


def test_code_stays() -> None:
    said = "```python\n" + "shapes.append(None)\n" * 10 + "```\nThat is it."
    chatter = Chatter(lambda message: said)
    messages = [{"role": "user", "content": "x"}]
    result = chatter.lm.generate(messages, loops="take back", max_tokens=None)
    assert result.text == said


def test_what_stands_in_the_prompt_may_be_repeated_as_often() -> None:
    asked = TURN * 8
    chatter = Chatter(lambda message: message + ".")
    messages = [{"role": "user", "content": asked}]
    result = chatter.lm.generate(messages, loops="take back", max_tokens=None)
    assert result.text == asked + "."
    assert result.usage.loops == 0
    more = Chatter(lambda message: message * 5)
    result = more.lm.generate(messages, loops="stop", max_tokens=None)
    assert result.text == TURN * 10  # two more: what repeats is taken back if it is not delivered


def test_thinking_that_repeats_itself_goes_another_way_and_then_ends() -> None:
    def answer(message: str) -> str:
        return "<think>" + "I am not sure yet. " * 40

    chatter = Chatter(answer, thinks=True)
    model = chatter.model
    script, mark = model.script, chatter.lm.vocabulary.encode("</think>")

    def say(history: tuple[int, ...]) -> Any:
        if mark[0] in history:
            said = chatter.lm.vocabulary.decode(history).split("</think>")[-1]
            return [b"Yes."[len(said)]] if len(said) < 4 else [chatter._end]
        wanted = list(script(history)) if len(history) < 400 else [ord("?")]
        return [*wanted, ord("I"), ord("z")]

    model.script = say
    messages = [{"role": "user", "content": "x"}]
    result = chatter.lm.generate(messages, loops="take back", max_tokens=None)
    assert result.text.endswith("</think>Yes.")
    assert result.text.count("</think>") == 1
    assert result.usage.loops == 2
    assert not result.usage.looped


def test_a_filter_that_wants_a_repetition_gets_it() -> None:
    result = parrot().lm.generate(
        PROMPT, filters=[Regex(r"(the cat sat down\. ){20}")], loops="take back", max_tokens=None
    )
    assert result.text == TURN * 20
    assert result.usage.loops == 0


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_what_is_written_instead_fits_the_filters(draft: str) -> None:
    speaker = parrot(before="")
    filters = [Regex(r"(the cat (sat|lay) down\. )*(! The end\.)?")]
    result = speaker.lm.generate(
        PROMPT, filters=filters, loops="take back", max_tokens=200, draft=draft
    )
    assert result.text.endswith("! The end.")
    assert result.usage.loops == 1


def test_a_text_that_is_not_valid_yet_ends_for_its_length() -> None:
    result = parrot(way_out="").lm.generate(
        PROMPT, filters=[Regex("[a-z. ]*1")], loops="stop", max_tokens=200
    )
    assert result.finish_reason == "length"
    assert result.usage.looped


@pytest.mark.parametrize("options", [{}, {"allow_retract": True}, {"stop": ["zz", "down!"]}])
def test_streams_batches_and_drafts_give_the_same(options: dict[str, Any]) -> None:
    given = {"loops": "take back", "max_tokens": 150, **options}
    speaker = parrot()
    once = speaker.lm.generate(PROMPT, **given)
    assert once.usage.loops == 1
    for draft in ("off", "ngram", "auto"):
        assert folded(speaker.lm.stream(PROMPT, draft=draft, **given)) == once.text
    several = speaker.lm.batch([PROMPT] * 3, **given).run()
    assert [each.text for each in several] == [once.text] * 3
    assert [each.usage.loops for each in several] == [1] * 3


def test_a_session_takes_loops_back_too() -> None:
    speaker = parrot()
    session = Session(speaker.tokenizer, prompt=PROMPT, loops="take back", max_tokens=200)
    text = ""
    while session.finish_reason is None:
        logits = np.full(speaker.vocabulary.size, -50.0, dtype=np.float32)
        for rank, token in enumerate(speaker.model.script(tuple(session.history))):
            logits[token] = -rank
        text += session.push_logits(logits).text
    assert text == session.text == TURN * 2 + END


def test_a_consumer_may_take_it_back_further_and_it_is_found_again() -> None:
    with parrot().lm.stream(PROMPT, loops="take back", max_tokens=200) as stream:
        list(stream)
        stream.rewind(to=5)
        assert stream.text + "".join(chunk.text for chunk in stream) == TURN * 2 + END


@cache
def one_parrot() -> Speaker:
    return parrot()


def test_another_value_is_refused() -> None:
    with pytest.raises(OptionError, match='loops: expected "off", "stop" or "take back", got'):
        parrot().lm.generate(PROMPT, loops="back")  # type: ignore[arg-type]


def shortest(tokens: list[Token]) -> tuple[int, int]:
    """The shortest period with which some tokens end, and how many of them have it."""
    for period in range(1, len(tokens) // 2 + 1):
        run = period
        while run < len(tokens) and tokens[-1 - run] == tokens[-1 - run + period]:
            run += 1
        if run >= max(2 * period, HELD):
            return period, run
    return 0, 0


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
    found = repeated(UNKNOWN, history, len(PROMPT), transcript, vocabulary)
    assert (found.period, found.run) == shortest(tokens)


def test_the_demo_model_loses_nothing_by_it() -> None:
    lm = mlxgen.load()
    for prompt in ("Once upon a time", "one two three one two three one two"):
        plain = lm.generate(prompt, max_tokens=64, temperature=0)
        with_it = lm.generate(prompt, max_tokens=64, temperature=0, loops="take back")
        if not with_it.usage.loops:
            assert with_it.text == plain.text
