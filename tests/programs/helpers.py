"""Running programs of tests on scripted models."""

from __future__ import annotations

from functools import partial
from typing import Any

from mlxgen import Control, Program
from mlxgen.programs.guide import ProgramFunction
from tests.fakes.controllers import alphabet, finish
from tests.fakes.speaking import PROMPT, Speaker

letters = partial(alphabet, end_after=None)


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


def run_over_errors(function: ProgramFunction, **options: Any) -> tuple[Any, list[Exception]]:
    """A program's run to the end, whatever fails."""
    run = letters().lm.control(PROMPT, Program(function), **options)
    errors: list[Exception] = []
    while True:
        try:
            next(run)
        except StopIteration:
            return run, errors
        except Exception as error:
            errors.append(error)
