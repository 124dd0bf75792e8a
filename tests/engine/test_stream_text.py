"""What a stream delivers: the peers' mistakes with text, ends and stops, each by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen import OptionError, PromptError
from mlxgen.engine.chunk import Chunk
from tests.fakes.speaking import PROMPT, Speaker, reciter

from ..effort import tries


def run(speaker: Speaker, **options: object) -> list[Chunk]:
    return list(speaker.lm.stream(PROMPT, **options))  # type: ignore[arg-type]


def text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def test_every_token_is_in_one_chunk_in_order_and_the_last_says_why() -> None:
    speaker = reciter(["ab", "c", "def"])
    chunks = run(speaker)
    assert [c.token for c in chunks] == [*speaker.tokens(["ab", "c", "def"]), speaker.end]
    assert [c.index for c in chunks] == [0, 1, 2, 3]
    assert [c.finish_reason for c in chunks] == [None, None, None, "stop"]
    assert text(chunks) == "abcdef"


@pytest.mark.parametrize("options", [{}, {"allow_retract": True}, {"stop": "abX"}])
def test_tokens_that_come_together_have_their_own_text(options: dict[str, Any]) -> None:
    pieces = [
        *"ab" * 6,
        "\N{GRINNING FACE}".encode()[0],
        *"\N{GRINNING FACE}".encode()[1:],
        *"ab" * 6,
    ]
    alone = run(reciter(pieces), draft="off", **options)
    drafted = run(reciter(pieces), draft="ngram", **options)
    assert sum(chunk.from_draft for chunk in drafted) > 6
    if "stop" not in options:
        assert [chunk.text for chunk in drafted] == [chunk.text for chunk in alone]
    assert text(drafted) == text(alone)


def test_generate_folds_what_stream_gives() -> None:
    speaker = reciter(["ab", "c"])
    result = speaker.lm.generate(PROMPT)
    assert (result.text, result.finish_reason) == ("abc", "stop")
    assert list(result.tokens) == [*speaker.tokens(["ab", "c"]), speaker.end]
    assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, 3)


def test_a_split_character_with_the_next_one_glued_on_prints_no_replacement() -> None:
    smile = "😀".encode()
    speaker = reciter([smile[0], smile[1], smile[2], smile[3], "é".encode()[0], 0xA9, "x"])
    assert text(run(speaker)) == "😀éx"


@pytest.mark.parametrize("budget", [1, 2, 3, 7])
def test_a_budget_of_n_tokens_yields_n(budget: int) -> None:
    chunks = run(reciter(list("abcdefgh")), max_tokens=budget)
    assert len(chunks) == budget
    assert chunks[-1].finish_reason == "length"
    assert text(chunks) == "abcdefgh"[:budget]


def test_an_end_token_while_text_is_held_delivers_the_held_text() -> None:
    chunks = run(reciter(["a", "<"]), stop=["<think>"])
    assert text(chunks) == "a<"
    assert chunks[-1].finish_reason == "stop"
    assert chunks[-1].stop is None


def test_a_stop_that_completes_on_the_last_budgeted_token_is_a_stop() -> None:
    chunks = run(reciter(["a", "d", "e", "f"]), stop="de", max_tokens=3)
    assert text(chunks) == "a"
    assert (chunks[-1].finish_reason, chunks[-1].stop) == ("stop", "de")


@pytest.mark.parametrize("stops", [["abcdef", "bc"], ["bc", "abcdef"]])
def test_the_stop_that_completes_first_wins_whatever_the_order(stops: list[str]) -> None:
    chunks = run(reciter(list("abcdef")), stop=stops)
    assert text(chunks) == "a"
    assert chunks[-1].stop == "bc"
    assert len(chunks) == 3


@pytest.mark.parametrize("pieces", [["d", "e"], ["de"], ["cde"], ["c", "def"], ["cd", "ef"]])
def test_tokenisation_never_matters_to_a_stop_string(pieces: list[str]) -> None:
    chunks = run(reciter(["ab", *pieces, "x"]), stop=["de"])
    assert text(chunks) == "ab" + "".join(pieces).partition("de")[0]
    assert chunks[-1].finish_reason == "stop"


def test_a_stop_never_leaks_and_text_that_only_looked_like_it_is_released() -> None:
    chunks = run(reciter(["x", "st", "o", "nes", " stop", "!"]), stop=["stop"])
    assert [c.text for c in chunks] == ["x", "", "", "stone", "s "]


def test_stop_tokens_end_the_text_before_their_first_token() -> None:
    speaker = reciter(["a", "b", "c", "d"])
    chunks = run(speaker, stop_tokens=[speaker.tokens(["b", "c"])])
    assert text(chunks) == "a"
    assert chunks[-1].stop == tuple(speaker.tokens(["b", "c"]))


def test_ignore_eos_goes_on_behind_the_end_token_which_gives_no_text() -> None:
    speaker = reciter(["a", "<end>", "b"])
    chunks = run(speaker, ignore_eos=True, max_tokens=3)
    assert text(chunks) == "ab"
    assert chunks[1].token == speaker.end
    assert chunks[-1].finish_reason == "length"


def test_min_tokens_keeps_the_end_away() -> None:
    def say(self: Speaker, generated: list[int]) -> list[int]:
        return [self.end, ord("a")]

    chunks = run(Speaker([], say), min_tokens=3)
    assert text(chunks) == "aaa"
    assert len(chunks) == 4


def test_an_unfinished_character_at_the_end_is_delivered_as_a_replacement() -> None:
    assert text(run(reciter(["a", 0xF0, 0x9F]))) == "a�"


def test_a_closed_stream_has_been_cancelled_and_gives_nothing_more() -> None:
    speaker = reciter(list("abcdef"))
    with speaker.lm.stream(PROMPT) as stream:
        assert next(stream).text == "a"
    assert stream.finish_reason == "cancelled"
    assert stream.text == "a"
    assert list(stream) == []


def test_stream_shows_text_and_tokens_as_they_are_delivered() -> None:
    speaker = reciter(["a", "st", "b"])
    stream = speaker.lm.stream(PROMPT, stop="stop")
    seen = []
    for _ in stream:
        seen.append((stream.text, len(stream.tokens)))
    assert seen == [("a", 1), ("a", 2), ("astb", 3), ("astb", 4)]


@pytest.mark.slow
@settings(max_examples=tries(60))
@given(
    pieces=st.lists(st.sampled_from(["a", "b", "ab", "é", "😀", "stop", "st", "op"]), max_size=12),
    cut=st.lists(st.integers(1, 3), min_size=1, max_size=30),
    stops=st.lists(st.sampled_from(["stop", "ab", "é", "a😀"]), max_size=3),
)
def test_the_text_is_the_same_for_every_way_of_cutting_it_into_tokens(
    pieces: list[str], cut: list[int], stops: list[str]
) -> None:
    whole = "".join(pieces)
    data = whole.encode()
    at_once = [text(run(reciter(pieces), stop=stops))]
    at_once.append(text(run(reciter(list(data)), stop=stops)))
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    expected = whole[: min(ends)[1]] if ends else whole
    assert at_once == [expected, expected]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"stop": 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"xtc_threshold": 0.9}, "xtc_threshold"),
        ({"logit_bias": {100000: 1.0}}, "logit_bias"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temprature": 1}, "temprature"),
        ({"stop_tokens": [[]]}, "stop_tokens"),
        ({"stop_tokens": [99999]}, "stop_tokens"),
        ({"hooks": 3}, "hooks"),
        ({"filters": "abc"}, "filters"),
        ({"prefix": [99999]}, "prefix"),
        ({"close_json": True}, "close_json"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
    ],
)
def test_a_wrong_option_is_named_before_anything_runs(options: dict[str, Any], field: str) -> None:
    speaker = reciter(["a"])
    with pytest.raises(OptionError) as error:
        speaker.lm.stream(PROMPT, **options)
    assert error.value.field == field
    assert str(error.value).startswith(field)
    assert speaker.model.passes == 0


@pytest.mark.parametrize("options", [{"top_k": 10_000}, {"seed": -5}, {"seed": 2**200}])
def test_what_breaks_other_servers_is_fine_here(options: dict[str, Any]) -> None:
    assert text(run(reciter(["a"]), temperature=0.5, **options)) == "a"


@pytest.mark.parametrize("prompt", ["", [], [99999], [True], [1, "a"], b"x", 5, None, "\ud800"])
def test_a_prompt_that_is_none_is_refused_with_a_reason(prompt: object) -> None:
    with pytest.raises(PromptError):
        reciter(["a"]).lm.stream(prompt)  # type: ignore[arg-type]


def test_a_prompt_longer_than_the_context_is_refused_and_the_budget_fits_what_is_left() -> None:
    speaker = reciter(list("abcdefgh"), max_context=4)
    with pytest.raises(PromptError, match="context"):
        speaker.lm.stream([63] * 4)
    chunks = run(speaker)
    assert (len(chunks), chunks[-1].finish_reason) == (3, "length")
