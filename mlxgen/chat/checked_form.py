"""An answer whose form is checked once it is complete, and written anew if it does not fit.

A hook for schemas of which a grammar holds only a part. The answer is not delivered before it was
checked. One that does not fit is taken back and drawn again, a few times; after that the request
fails: nobody gets an answer that violates its schema without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from ..errors import DeadEndError
from ..tokens import Token
from .calls.checked import LONGEST, TRIES, Sampled
from .calls.fitting import Fitting, UncheckedError
from .splitter import Reading, Splitter

_COLD, _WARM = 0.5, 0.8  # temperatures: one that hardly varies, and that of another try


class CheckedForm:
    """The hook of one sequence. ``ends`` are the tokens that end a text; ``temperature`` is that of
    the draws: if they hardly vary, those of another try do."""

    def __init__(
        self, schema: Mapping[str, Any], reading: Reading, ends: Set[Token], temperature: float
    ) -> None:
        self._schema = schema
        self._reading = reading
        self._ends = ends
        self._temperature = temperature
        self._fitting = Fitting(schema)
        self._began: int | None = None  # the position at which the answer did, after the thinking
        self._tries = 0
        self._redrawn = -1  # the position of a draw that was made warmer

    def fork(self) -> CheckedForm:
        """A hook for a copy of the sequence."""
        return CheckedForm(self._schema, self._reading, self._ends, self._temperature)

    def __call__(self, sampled: Sampled) -> None:
        position = sampled.position
        if self._began is not None and position < self._began:
            self._began = None  # somebody else went back
        text = sampled.text_after
        if self._began is None:
            if not self._is_in_answer(text):
                return
            self._began = position
        count = position + 1 - self._began
        sampled.hold = max(sampled.hold, count if count <= LONGEST else 0)
        warms = self._tries and self._temperature < _COLD
        if warms and not sampled.is_forced and position != self._redrawn:
            self._redrawn, sampled.resample, sampled.temperature = position, True, _WARM
            return
        self._redrawn = -1
        ends = sampled.sampled_token in self._ends
        if not ends and text.rstrip()[-1:] not in ("}", "]"):
            return
        objection = self._objection(text)
        if objection is None:
            return
        back = min(count, sampled.can_rewind)
        if self._tries < TRIES and back == count:
            self._tries += 1
            sampled.rewind = max(sampled.rewind, back)
            return
        raise DeadEndError(f"no answer was found that fits the whole schema: {objection}")

    def _objection(self, text: str) -> str | None:
        """What is wrong with the answer, if it is complete."""
        splitter = Splitter(self._reading)
        spans = [*splitter.push(text), *splitter.flush()]
        answer = "".join(span.text for span in spans if span.kind == "content")
        try:
            json.loads(answer)
        except (ValueError, RecursionError):
            return None  # it goes on, or is a call
        try:
            return self._fitting.objection(answer)
        except UncheckedError as error:
            raise DeadEndError(f"the answer cannot be checked: {error}") from error

    def _is_in_answer(self, text: str) -> bool:
        marks = self._reading.marks
        if marks.answer:
            return all(mark in text for mark in marks.answer)
        if marks.think_end is None or self._reading.thinking == "closed":
            return True
        if self._reading.thinking == "open" or text.lstrip().startswith(marks.think_start or "\0"):
            return marks.think_end in text
        start = text.lstrip()
        return bool(start) and not (marks.think_start or "").startswith(start)
