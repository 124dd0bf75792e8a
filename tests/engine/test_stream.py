"""What a stream refuses, and what its caller may do to it between two tokens: every line of
``tests/data/streams.jsonl``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlxgen
from mlxgen import OptionError, PromptError, Regex, StateError, errors
from tests.fakes import sentencepiece_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.speaking import PROMPT, reciter, talker

from ..effort import tries
from .kit import options_of, speaker_of

TABLE = Path(__file__).parents[1] / "data" / "streams.jsonl"


def rest(stream: mlxgen.Stream) -> str:
    return "".join(chunk.text for chunk in stream)


ABC = list("abcdef")


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


# ---- what a caller does between two tokens -------------------------------------------------------

LINES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


class Caller:
    """Somebody with a stream, and a method for each thing that a line may do or see."""

    def __init__(self, model: Any, options: dict[str, Any]) -> None:
        self.speaker = speaker_of(model)
        given = options_of(options)
        if "prefix" in given:
            given["prefix"] = self.speaker.tokens(given["prefix"])
        self.stream = self.speaker.lm.stream(PROMPT, **given)
        self.twins: list[mlxgen.Stream] = []

    def do(self, deed: list[Any]) -> None:
        verb, *given = deed
        getattr(self, verb.replace(" ", "_"))(*given)

    def next(self, count: int, text: str) -> None:
        assert "".join(next(self.stream).text for _ in range(count)) == text

    def rest(self, text: str | None, reason: str) -> None:
        assert rest(self.stream) == text or text is None
        assert self.stream.finish_reason == reason

    def text(self, text: str) -> None:
        assert self.stream.text == text

    def usage(self, name: str, value: Any) -> None:
        assert getattr(self.stream.usage, name) == value

    def append(self, pieces: Any) -> None:
        self.stream.append(self.speaker.tokens(list(pieces)))

    def rewind(self, how: dict[str, Any]) -> None:
        self.stream.rewind(**options_of(how))

    def fork(self, count: Any, options: dict[str, Any] | None = None) -> None:
        self.twins = self.stream.fork(count, **options_of(options or {}))

    def turn_to(self, twin: int) -> None:
        self.stream = self.twins[twin]

    def keep(self) -> None:
        self.stream.keep()

    def close(self) -> None:
        self.stream.close()

    def forget(self) -> None:
        self.speaker.model.forget()

    def fed(self, counts: list[int]) -> None:
        assert [len(tokens) for tokens in self.speaker.model.fed] == counts

    def refused(self, what: str, deed: list[Any]) -> None:
        """An error, perhaps of a field; then everything is as before."""
        name, _, field = what.partition(" ")
        before = self.stream.text, self.stream.tokens, self.stream.finish_reason
        with pytest.raises(getattr(errors, name, TypeError)) as error:
            self.do(deed)
        assert (getattr(error.value, "field", None) or "") == field
        text, *others = self.stream.text, self.stream.tokens, self.stream.finish_reason
        assert others == list(before[1:]) and before[0].startswith(text)  # a ban may claim its end


@pytest.mark.whole
@pytest.mark.parametrize("line", LINES, ids=[line["why"] for line in LINES])
def test_a_stream_is_where_its_caller_put_it(line: dict[str, Any]) -> None:
    caller = Caller(line["model"], line["options"])
    for deed in line["do"]:
        caller.do(deed)


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


@pytest.mark.parametrize("to", [0, 1, 2])
def test_a_stream_that_goes_back_before_it_gives_a_retraction_has_the_tokens_of_its_text(
    to: int,
) -> None:
    speaker = talker({"": ["a", "z"], "a": ["b"], "ab": ["c"], "z": ["y"], "zy": ["x"]})
    one = speaker.lm.stream(PROMPT, banned="abc", allow_retract=True)
    next(one)
    (two,) = one.fork()
    assert [next(each).text for each in (one, two)] == ["b", "b"]
    assert next(one).retract == 2  # the other has drawn this as well
    two.rewind(to=to)
    assert speaker.text(two.tokens) == two.text
    rest(two)
    assert speaker.text(two.tokens) == two.text == "zyx"


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
@pytest.mark.parametrize("heal", [False, True])
def test_filters_that_come_at_the_start_hold_for_the_same_text_as_from_there(
    prompt: Any, heal: bool
) -> None:
    """A chat of a tokenizer that strips a leading space has an answer without that space."""
    tokenizer = sentencepiece_tokenizer()
    lm = mlxgen.LanguageModel(tiny_model(tiny_config(len(tokenizer.vocab))), tokenizer)
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 4, "heal": heal}
    for pattern in (" a", "a", " ?[0-9]"):
        stream = lm.stream(prompt, **options)
        next(stream)
        stream.rewind(to=0, filters=Regex(pattern))
        expected = lm.generate(prompt, filters=Regex(pattern), **options)
        assert (rest(stream), stream.tokens) == (expected.text, list(expected.tokens))
        assert re.fullmatch(pattern, expected.text)


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
