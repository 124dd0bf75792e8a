"""Calls that are checked when they are complete, and drawn again if they do not fit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mlxgen import DeadEndError
from mlxgen.chat.calls.checked import CheckedCalls
from mlxgen.chat.calls.formats import FORMATS
from mlxgen.chat.calls.reader import ToolReader
from mlxgen.chat.marks import Reading
from mlxgen.engine.chunk import Chunk
from mlxgen.engine.request.accept import LONGEST_CHECKED
from mlxgen.engine.request.objections import CHECKS
from mlxgen.tokens import Token
from tests.fakes.speaking import PROMPT, Speaker

from .kit import tool

HEAD = ["Hi ", "<tool_call>", '{"name": "count", ', '"arguments": ']
TAIL = ["}", "</tool_call>", " Bye"]


class Counter:
    """A model that counts to a number that it draws, and mostly draws 1."""

    def __init__(self, schema: dict[str, Any], choices: dict[str, float], **options: Any) -> None:
        arguments = ['{"n": ', "?", "}"]
        self.script = [*HEAD, *arguments, *TAIL]

        def say(speaker: Speaker, generated: list[Token]) -> Any:
            piece = self.script[len(generated)] if len(generated) < len(self.script) else None
            if piece == "?":
                return {speaker.token(text): logit for text, logit in choices.items()}
            return [speaker.end if piece is None else speaker.token(piece)]

        self.speaker = Speaker([*self.script, *choices], say)
        format = FORMATS["json_tools"]
        reading = Reading(tools=ToolReader(format, [tool("count", n={})]))
        strict = options.pop("strict", ())
        check = CheckedCalls(reading, {"count": {"properties": {"n": schema}}}, frozenset(strict))
        self.options = {"filters": [check], "seed": 1, **options}

    def run(self, **options: Any) -> list[Chunk]:
        return list(self.speaker.lm.stream(PROMPT, **self.options, **options))


def text(chunks: Sequence[Chunk]) -> str:
    return "".join(chunk.text for chunk in chunks)


def arguments(chunks: Sequence[Chunk]) -> Any:
    said = text(chunks)
    return json.loads(said[said.index('"arguments": ') + 13 : said.index("}</tool_call>")])


EVEN = {"1": 0.2, "2": 0.0, "3": 0.0}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_arguments_that_do_not_fit_are_drawn_again(temperature: float, seed: int) -> None:
    counter = Counter({"enum": [2, 3]}, EVEN, temperature=temperature)
    counter.options["seed"] = seed
    chunks = counter.run()
    assert arguments(chunks)["n"] in (2, 3)
    assert text(chunks).endswith("</tool_call> Bye")


def test_after_some_tries_the_last_arguments_stand_with_a_word_unless_they_are_strict() -> None:
    counter = Counter({"const": 9}, EVEN)
    with counter.speaker.lm.stream(PROMPT, **counter.options) as stream:
        chunks = list(stream)
        assert stream.usage.rewound_tokens >= 2 * CHECKS
        assert stream.usage.violates == "the arguments of count do not fit: it violates const"
    assert arguments(chunks)["n"] in (1, 2, 3)
    with pytest.raises(DeadEndError, match="count do not fit"):
        Counter({"const": 9}, EVEN, strict={"count"}).run()


def test_nothing_of_a_call_is_delivered_before_it_is_checked() -> None:
    counter = Counter({"const": 2}, EVEN)
    shown = ""
    for chunk in counter.speaker.lm.stream(PROMPT, **counter.options):
        assert not chunk.retract and not chunk.rewound
        if chunk.index == 1:
            assert counter.speaker.model.passes > 7  # up to the end of the arguments, at least
            break
        shown += chunk.text
    assert shown == "Hi "


def test_a_schema_that_cannot_be_followed_lets_the_arguments_stand() -> None:
    counter = Counter({"$ref": "http://localhost:1/x"}, EVEN)
    with counter.speaker.lm.stream(PROMPT, **counter.options) as stream:
        assert arguments(list(stream))["n"] in (1, 2, 3)
        assert "cannot be checked" in stream.usage.violates


def test_going_back_into_a_call_by_hand_checks_it_anew() -> None:
    counter = Counter({"enum": [2, 3]}, EVEN)
    with counter.speaker.lm.stream(PROMPT, **counter.options) as stream:
        list(stream)
        for kept in range(len(stream.tokens)):
            stream.rewind(to=kept)
            list(stream)
            assert counter.speaker.text(stream.tokens[5:6]) in "23"


def test_a_long_call_is_not_held_for_good() -> None:
    counter = Counter({"const": 1}, EVEN)
    counter.script[5:6] = ["1", *(" " for _ in range(LONGEST_CHECKED))]
    for chunk in counter.speaker.lm.stream(PROMPT, max_tokens=None, **counter.options):
        if chunk.index == 1:
            break
    assert LONGEST_CHECKED <= counter.speaker.model.passes < len(counter.script) - 3
