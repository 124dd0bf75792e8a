"""Running programs of tests on scripted models."""

from __future__ import annotations

from typing import Any

from mlxgen import Control, Program
from mlxgen.programs.guide import ProgramFunction
from mlxgen.tokens import Token
from tests.fakes.controllers import finish
from tests.fakes.speaking import PROMPT, Speaker

LETTERS = [*range(97, 123)]


def letters(*, end_after: int | None = None, **options: Any) -> Speaker:
    """Says the alphabet from where the text stands; ends after so many tokens, or never."""

    def say(self: Speaker, generated: list[Token]) -> list[Token]:
        if end_after is not None and len(generated) >= end_after:
            return [self.end]
        last = generated[-1] if generated and generated[-1] in LETTERS else 96
        return [97 + (last - 96 + i) % 26 for i in range(26)] + [*b'0123456789"{}:,. \n', self.end]

    return Speaker([], say, **options)


def carry_out(
    function: ProgramFunction, speaker: Speaker | None = None, **options: Any
) -> Control[Any]:
    """A program's run, finished; errors of branches are raised."""
    speaker = speaker or letters()
    run = speaker.lm.control(PROMPT, Program(function), **options)
    finish(run)
    return run


def text_of(function: ProgramFunction, speaker: Speaker | None = None, **options: Any) -> str:
    return carry_out(function, speaker, **options).results[()].text
