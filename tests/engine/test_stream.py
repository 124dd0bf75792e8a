"""What a stream delivers, and what its caller may do to it between two tokens."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import FilterError, GrammarError, OptionError, PromptError, Regex, StateError
from mlxgen.tokens import Token
from tests.fakes import sentencepiece_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.speaking import END, PROMPT, Speaker, letters, reciter

from ..effort import tries


def rest(stream: mlxgen.Stream) -> str:
    return "".join(chunk.text for chunk in stream)


# ---- text, ends and stops: the peers' mistakes ---------------------------------------------------

ABC, SMILE = list("abcdef"), "😀".encode()
# What the model says, the options, the text that is delivered, why it ends, and at which stop
TEXTS: list[tuple[list[Any], dict[str, Any], str, str, Any]] = [
    (["ab", "c", "def"], {}, "abcdef", "stop", None),
    ([*SMILE, *"é".encode(), "x"], {}, "😀éx", "stop", None),
    (["a", *SMILE[:2]], {}, "a\ufffd", "stop", None),
    (ABC, {"max_tokens": 1}, "a", "length", None),
    (ABC, {"max_tokens": 3}, "abc", "length", None),
    (ABC, {"max_tokens": 6}, "abcdef", "length", None),
    (["a", "<"], {"stop": ["<think>"]}, "a<", "stop", None),
    (["a", "d", "e", "f"], {"stop": "de", "max_tokens": 3}, "a", "stop", "de"),
    (ABC, {"stop": ["abcdef", "bc"]}, "a", "stop", "bc"),
    (ABC, {"stop": ["bc", "abcdef"]}, "a", "stop", "bc"),
    (["ab", "d", "e", "x"], {"stop": "de"}, "ab", "stop", "de"),
    (["ab", "cde", "x"], {"stop": "de"}, "abc", "stop", "de"),
    (["ab", "cd", "ef", "x"], {"stop": "de"}, "abc", "stop", "de"),
    (["x", "st", "o", "nes", " stop", "!"], {"stop": ["stop"]}, "xstones ", "stop", "stop"),
    (ABC, {"stop_tokens": [[*b"bc"]]}, "a", "stop", tuple(b"bc")),
    (["a", END, "b"], {"ignore_eos": True, "max_tokens": 3}, "ab", "length", None),
    (["a"], {"top_k": 10_000, "seed": -5, "temperature": 0.5}, "a", "stop", None),
    (["a"], {"seed": 2**200, "temperature": 0.5}, "a", "stop", None),
]


def test_every_token_is_in_one_chunk_and_the_last_says_why_the_text_ends() -> None:
    for pieces, options, *end in TEXTS:
        lm = reciter(pieces).lm
        stream = lm.stream(PROMPT, **options)
        chunks, told = [], ""
        for chunk in stream:
            chunks.append(chunk)
            told += chunk.text
            assert (stream.text, stream.tokens) == (told, [each.token for each in chunks])
            assert stream.finish_reason == chunk.finish_reason
        assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
        assert {chunk.finish_reason for chunk in chunks[:-1]} <= {None}
        assert [told, chunks[-1].finish_reason, chunks[-1].stop] == end, (pieces, options)
        result = lm.generate(PROMPT, **options)
        assert [result.text, result.finish_reason, result.stop] == end
        assert list(result.tokens) == stream.tokens
        assert (result.usage.prompt_tokens, result.usage.completion_tokens) == (1, len(chunks))


@settings(max_examples=tries(60))
@given(
    pieces=st.lists(st.sampled_from(["a", "b", "ab", "é", "😀", "stop", "st", "op"]), max_size=12),
    stops=st.lists(st.sampled_from(["stop", "ab", "é", "a😀"]), max_size=3),
)
def test_the_text_is_the_same_for_every_way_of_cutting_it_into_tokens(
    pieces: list[str], stops: list[str]
) -> None:
    whole = "".join(pieces)
    ends = [(whole.find(stop) + len(stop), whole.find(stop)) for stop in stops if stop in whole]
    expected = whole[: min(ends)[1]] if ends else whole
    for said in (pieces, list(whole.encode())):
        assert reciter(said).lm.generate(PROMPT, stop=stops).text == expected


def test_min_tokens_keeps_the_end_away() -> None:
    speaker = Speaker([], lambda self, generated: [self.end, ord("a")])
    result = speaker.lm.generate(PROMPT, min_tokens=3)
    assert (result.text, len(result.tokens)) == ("aaa", 4)


# ---- what is refused, before anything runs -------------------------------------------------------

# What an option may be is in its table; these depend on the model, or on one another
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temprature": 1}, "temprature"),
    ({"logit_bias": {257: 1.0}}, "logit_bias"),
    ({"stop_tokens": [257]}, "stop_tokens"),
    ({"prefix": [257]}, "prefix"),
    ({"prediction": [257]}, "prediction"),
    ({"draft": "bigram"}, "draft"),
    ({"close_json": True}, "close_json"),
    ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
]


def test_a_wrong_option_is_named() -> None:
    speaker = reciter(["a"])
    for options, field in WRONG:
        with pytest.raises(OptionError) as error:
            speaker.lm.stream(PROMPT, **options)
        assert error.value.field == field and str(error.value).startswith(field)
    assert speaker.model.passes == 0


def test_a_prompt_must_leave_room_in_the_context_and_the_budget_is_what_it_leaves() -> None:
    lm = reciter(ABC, max_context=4).lm
    for prompt, prefix in (([63] * 4, []), (PROMPT, list(b"abc"))):
        with pytest.raises(PromptError, match="context"):
            lm.stream(prompt, prefix=prefix)
    for prompt, prefix, left in ((PROMPT, [], "abc"), (PROMPT, list(b"ab"), "c")):
        result = lm.generate(prompt, prefix=prefix)
        assert (result.text, result.finish_reason) == (left, "length")


# ---- tokens that a caller puts there -------------------------------------------------------------


def test_a_text_goes_on_after_what_was_put_there_in_one_pass() -> None:
    speaker = reciter(ABC)
    stream = speaker.lm.stream(PROMPT)
    stream.append(b"ZZ")  # any sequence of ids, before the first one
    assert [next(stream).text for _ in range(4)] == ["Z", "Z", "c", "d"]
    stream.rewind(tokens=2)
    stream.append(list(b"XY"))
    speaker.model.forget()
    assert [next(stream).text for _ in range(4)] == ["X", "Y", "e", "f"]
    assert speaker.model.fed[0][-2:] == list(b"XY")
    assert stream.text == "ZZXYef"


def test_an_end_can_be_put_there_too_and_nothing_after_it() -> None:
    speaker = reciter(ABC)
    with speaker.lm.stream(PROMPT) as stream:
        next(stream)
        with pytest.raises(StateError):
            stream.append([speaker.end, 5])
        stream.append([speaker.end])
        assert [chunk.finish_reason for chunk in stream] == ["stop"]
        with pytest.raises(StateError, match="ended"):
            stream.append([97])
    for call in (lambda: stream.append([97]), lambda: stream.rewind(1), stream.fork, stream.keep):
        with pytest.raises(StateError, match="closed"):
            call()


@pytest.mark.parametrize(
    "options", [{"filters": [Regex("[a-f]*")]}, {"banned": ["aXb"]}], ids=["filter", "ban"]
)
def test_what_may_not_be_put_there_changes_nothing(options: dict[str, Any]) -> None:
    stream = reciter(ABC).lm.stream(PROMPT, **options)
    for _ in range(3):
        next(stream)
    tokens, text = stream.tokens, stream.text
    with pytest.raises(FilterError):
        stream.append(list(b"aXb"))
    assert stream.tokens == tokens and text.startswith(stream.text)  # a ban may claim its end again
    with pytest.raises(OptionError) as error:
        stream.append([-1])
    assert error.value.field == "tokens"
    list(stream)
    assert stream.text == "abcdef"


def test_a_closed_stream_has_been_cancelled_and_gives_nothing_more() -> None:
    with reciter(ABC).lm.stream(PROMPT) as stream:
        assert next(stream).text == "a"
    assert (stream.finish_reason, stream.text, list(stream)) == ("cancelled", "a", [])
    speaker = reciter(ABC)
    stream = speaker.lm.stream(PROMPT)
    stream.append([speaker.end])  # so the text has an end, which nobody has taken
    stream.close()
    assert (stream.finish_reason, list(stream)) == ("cancelled", [])


def test_a_stream_that_has_failed_goes_on_after_a_rewind() -> None:
    fails = [True]

    def hook(result: mlxgen.PostSamplingResult) -> None:
        if result.position == 3 and fails:
            raise ValueError("no")

    stream = reciter(ABC).lm.stream(PROMPT, hooks=hook)
    assert [next(stream).text for _ in range(3)] == ["a", "b", "c"]
    with pytest.raises(mlxgen.HookError):
        next(stream)
    with pytest.raises(StateError, match="error"):
        next(stream)
    with pytest.raises(StateError):
        stream.fork()
    fails.clear()
    stream.rewind(tokens=1)
    assert rest(stream) == "cdef"


# ---- other options from here on ------------------------------------------------------------------


def babbler() -> Speaker:
    def say(self: Speaker, generated: list[Token]) -> dict[Token, float]:
        return {97 + (len(generated) + i) % 26: -0.1 * i for i in range(5)} | {48: -9.0, 49: -9.1}

    return Speaker([], say)


def four_letters(draft: str = "off") -> mlxgen.Stream:
    stream = babbler().lm.stream(PROMPT, max_tokens=20, draft=draft)
    assert "".join(next(stream).text for _ in range(4)) == "abcd"
    return stream


@pytest.mark.parametrize("draft", ["off", "ngram"])
def test_filters_sampling_and_stops_may_change_from_a_place_on(draft: str) -> None:
    stream = four_letters(draft)
    stream.rewind(1, filters=Regex("[01]{3}"))
    assert stream.text == "abc"
    assert (rest(stream), stream.finish_reason) == ("000", "filter")
    stream.rewind(to=2, filters=())
    assert rest(stream) == letters(18, 2)
    stream = four_letters(draft)
    stream.rewind(0, logit_bias={ord("0"): 50.0}, stop="bcd", repetition_penalty=1.0)
    assert next(stream).text == "0"
    stream.rewind(0, logit_bias={}, stop="ghi", dry_multiplier=0.0)
    assert (rest(stream), stream.text, stream.finish_reason) == ("f", "abcd0f", "stop")


def test_a_penalty_that_comes_later_knows_what_was_written_before() -> None:
    lm = mlxgen.load()
    penalties: dict[str, Any] = {"repetition_penalty": 1.5, "dry_multiplier": 1.0}
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0}
    stream = lm.stream("Once upon a time", **options)
    for _ in range(8):
        next(stream)
    stream.rewind(0, **penalties)
    kept = stream.tokens
    list(stream)
    whole = lm.generate("Once upon a time", prefix=kept, **options, **penalties)
    assert stream.tokens == list(whole.tokens)


@pytest.mark.parametrize(
    "prompt", ["so", [{"role": "user", "content": "so"}]], ids=["text", "chat"]
)
def test_filters_that_come_at_the_start_hold_for_the_same_text_as_from_there(prompt: Any) -> None:
    """A chat of a tokenizer that strips a leading space has an answer without that space."""
    tokenizer = sentencepiece_tokenizer()
    lm = mlxgen.LanguageModel(tiny_model(tiny_config(len(tokenizer.vocab))), tokenizer)
    for pattern in (" a", "a", " ?[0-9]"):
        stream = lm.stream(prompt, temperature=0, max_tokens=4)
        next(stream)
        stream.rewind(to=0, filters=Regex(pattern))
        expected = lm.generate(prompt, filters=Regex(pattern), temperature=0, max_tokens=4)
        assert (rest(stream), stream.tokens) == (expected.text, list(expected.tokens))


def test_a_fork_may_have_options_of_its_own() -> None:
    stream = four_letters()
    one, two = stream.fork(2, filters=Regex("[01]{3}"), top_k=1)
    assert rest(one) == rest(two) == "000"
    assert rest(stream) == letters(16, 4)


def test_what_cannot_change_is_refused_and_nothing_has_changed() -> None:
    stream = four_letters()
    wrong: list[dict[str, Any]] = [
        {"max_tokens": 3}, {"temperature": -1}, {"filters": Regex("(")}, {"stop_tokens": [257]},
        {"heat": 1},
    ]  # fmt: skip
    for each in wrong:
        for change in (stream.rewind, stream.fork):
            with pytest.raises((OptionError, GrammarError)) as error:
                change(1, **each)
            assert getattr(error.value, "field", "") in each or isinstance(
                error.value, GrammarError
            )
    assert rest(stream) == letters(16, 4)


def test_a_rewind_or_a_fork_by_what_is_no_number_changes_nothing() -> None:
    stream = reciter(ABC).lm.stream(PROMPT)
    assert (next(stream).text, next(stream).text) == ("a", "b")
    wrong: Any
    for wrong in (1.5, "a"):
        for how in ({"tokens": wrong}, {"to": wrong}):
            with pytest.raises(TypeError):
                stream.rewind(**how)
    for wrong in (0, 1.5, "a", True):
        with pytest.raises(OptionError) as error:
            stream.fork(wrong)
        assert error.value.field == "n"
    assert rest(stream) == "cdef"


@pytest.mark.parametrize("where", ["its first pass", "a run that its filters force"])
def test_a_stream_that_is_interrupted_as_it_begins_can_go_on_from_there(where: str) -> None:
    speaker = reciter(list("xyzabc"))
    script, interrupts = speaker.model.script, [True]

    def interrupted(*_: Any) -> None:
        if interrupts:
            interrupts.clear()
            raise KeyboardInterrupt

    def once(history: tuple[int, ...]) -> Any:
        if where == "its first pass":
            interrupted()
        return script(history)

    speaker.model.script = once
    given: dict[str, Any] = {"hooks": interrupted} if where != "its first pass" else {}
    stream = speaker.lm.stream(PROMPT, filters=Regex("xyz[a-c]{3}"), max_tokens=20, **given)
    with pytest.raises(KeyboardInterrupt):
        list(stream)
    stream.rewind(len(stream.tokens))
    assert "".join(chunk.text for chunk in stream) == "xyzabc"
    assert stream.finish_reason == "filter" and stream.tokens == speaker.tokens("xyzabc")
