"""Checks the arguments of calls whose schemas no grammar can enforce completely.

The filter allows every token, and objects to the arguments of a complete call that do not fit their
schema: they are drawn again, like any text that fails the check at its end. Invariant: nothing of
such a call is delivered before it is checked, unless it is too long to be held.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from ...filters import Int32Words, Objection, Replay
from ...filters.schema.fitting import Check
from ...tokens import AnyTokenizer, Token, Vocabulary
from ..events import CallArguments, CallStarted
from ..marks import Reading
from ..splitter import Splitter


@dataclass(frozen=True, slots=True, eq=False)
class CheckedCalls:
    """Holds the calls that ``reading`` finds in an answer to the ``schemas`` of their tools; a call
    of a ``strict`` tool must not stand unless it fits."""

    reading: Reading
    schemas: Mapping[str, Any]
    strict: Set[str]

    by_bytes: ClassVar[bool] = True

    def bind(self, tokenizer: AnyTokenizer, vocab_size: int) -> Replay:
        """As ``Specification.bind``."""
        return Replay(partial(CallsFilter, self, Vocabulary.of(tokenizer)))


class CallsFilter:
    """The running filter of ``CheckedCalls``."""

    checks = True

    def __init__(self, asked: CheckedCalls, vocabulary: Vocabulary) -> None:
        self._asked = asked
        self._vocabulary = vocabulary
        self.reset()

    def reset(self) -> None:
        self._fed = 0  # tokens
        self._splitter = Splitter(self._asked.reading)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._name: str | None = None  # of the call being read
        self._since = self._at = 0  # tokens before the call, and before its arguments
        self._arguments = ""
        self._complete: list[tuple[str, int, str]] = []  # by the newest token: name, at, text

    def advance(self, token: Token) -> None:
        before, splitter = self._fed, self._splitter
        self._fed += 1
        self._complete = []
        if not splitter.is_in_call:
            self._since = self._at = before
            self._name = None
        for span in splitter.push(self._decoder.decode(self._vocabulary.piece(token))):
            for event in span.events:
                if isinstance(event, CallStarted):
                    self._name, self._arguments = event.name, ""
                elif isinstance(event, CallArguments):
                    self._arguments += event.text
                elif self._name is not None:
                    if self._name in self._asked.schemas:
                        self._complete.append((self._name, self._at, self._arguments))
                    self._name, self._since, self._at = None, before, before
        if splitter.calling is not None and self._name is None:
            self._name, self._at = splitter.calling, before + 1

    def unchecked(self) -> tuple[int, bool]:
        """The number of tokens so far of a call that will be checked, or may turn out to be; and
        whether the newest token completes such a call."""
        is_one = self._name is None or self._name in self._asked.schemas
        is_open = self._splitter.is_in_call and is_one
        return self._fed - self._since if is_open else 0, bool(self._complete)

    def objection(self, *, ends: bool = False) -> Objection | None:
        """What is wrong with the arguments of a call that the newest token completes."""
        for name, at, arguments in self._complete:
            schema = json.dumps(self._asked.schemas[name])
            reason = Check(schema, keywords=("all",)).objection(arguments)
            if reason is not None:
                reason = f"the arguments of {name} do not fit: {reason}"
                return Objection(reason, self._fed - at, name in self._asked.strict)
        return None

    # ---- the rest of a filter --------------------------------------------------------------

    def fill(self, row: Int32Words) -> bool:
        return False

    def can_end(self) -> bool:
        return True

    def validate(self, tokens: Sequence[Token]) -> int:
        return len(tokens)
