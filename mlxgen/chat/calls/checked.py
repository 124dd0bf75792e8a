"""Calls whose arguments are checked once they are complete, and written anew if they do not fit.

A hook for tools whose schemas no grammar can hold. From its beginning a call is not delivered. When
its arguments are there and do not fit, they are taken back and drawn again, a few times; then the
last ones stand. Invariant: what was delivered of a call is never taken back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

from ...filters.schema.fitting import Fitting, UncheckedError
from ..splitter import Reading, Span, Splitter

TRIES = 5  # after the first
LONGEST = 2048  # tokens of a call that are held back; a longer one stands as it comes
_COLD, _WARM = 0.5, 0.8  # temperatures: one that hardly varies, and that of another try

Tell: TypeAlias = Callable[[str, str], object]
"""Called with the name of a tool and what is wrong with the arguments that stand."""


class Sampled(Protocol):
    """What a hook gets, as far as it matters here."""

    position: int
    sampled_token: int
    resample: bool
    rewind: int
    hold: int
    temperature: float | None

    @property
    def text(self) -> str: ...
    @property
    def text_after(self) -> str: ...
    @property
    def can_rewind(self) -> int: ...
    @property
    def is_forced(self) -> bool: ...


class CheckedCalls:
    """The hook of one sequence: ``fitting`` has the tools to check.

    ``temperature`` is that of the draws: if they hardly vary, those of another try do.
    """

    def __init__(
        self, reading: Reading, fitting: Mapping[str, Fitting], temperature: float, tell: Tell
    ) -> None:
        self._reading = reading
        self._fitting = fitting
        self._temperature = temperature
        self._tell = tell
        self._splitter = Splitter(reading)
        self._length = 0  # characters read
        self._next = 0  # the position that is expected
        self._since: int | None = None  # the position at which the call began
        self._at = 0  # and that of its arguments
        self._name: str | None = None  # of the call whose arguments are read
        self._parts: list[str] = []
        self._tries: dict[int, int] = {}  # by the position of the arguments
        self._warm = False  # whether the arguments are drawn again
        self._redrawn = -1  # the position of a draw that was made warmer
        self._back = -1  # the position to which this hook has gone back last

    def fork(self) -> CheckedCalls:
        """A hook for a copy of the sequence."""
        return CheckedCalls(self._reading, self._fitting, self._temperature, self._tell)

    def __call__(self, sampled: Sampled) -> None:
        position = sampled.position
        if position != self._next:
            self._read_again(sampled.text, position)
        if self._warm and not sampled.is_forced and position != self._redrawn:
            self._redrawn, sampled.resample, sampled.temperature = position, True, _WARM
            sampled.hold = max(sampled.hold, self._held(position))
            return
        self._next, self._redrawn = position + 1, -1
        text = sampled.text_after
        text, self._length = text[self._length :], len(text)
        spans = self._splitter.push(text)
        if self._since is None and self._splitter.is_in_call:
            self._since = position
        if self._name is None and self._splitter.calling is not None:
            self._name, self._at = self._splitter.calling, position + 1
        for span in spans:
            self._follow(span, sampled)
        if self._since is not None and not self._splitter.is_in_call:
            self._since = None
        sampled.hold = max(sampled.hold, self._held(position))

    def _held(self, position: int) -> int:
        """How many tokens to hold back: those of a call that may be taken back."""
        if self._since is None or (self._name is not None and self._name not in self._fitting):
            return 0
        count = position + 1 - self._since
        return count if count <= LONGEST else 0

    def _follow(self, span: Span, sampled: Sampled) -> None:
        for call in span.calls:
            if self._name is None:  # all of it came with this token
                self._at = self._since if self._since is not None else sampled.position
            self._name, self._parts = call.name, []
        self._parts.append(span.more)
        if span.ended:
            self._end(sampled)

    def _end(self, sampled: Sampled) -> None:
        """The arguments are complete."""
        name, self._name, self._warm = self._name, None, False
        fitting = self._fitting.get(name) if name is not None else None
        if fitting is None or name is None:
            return
        try:
            objection = fitting.objection("".join(self._parts))
        except UncheckedError as error:
            self._tell(name, str(error))
            return
        if objection is None:
            return
        self._at = min(self._at, sampled.position)
        # A reader who went back has what comes before, and has to keep it.
        self._at = max(self._at, sampled.position + 1 - sampled.can_rewind)
        tries = self._tries.get(self._at, 0)
        if tries < TRIES and self._held(sampled.position):
            self._tries[self._at] = tries + 1
            self._warm = self._temperature < _COLD
            self._back = self._at
            sampled.rewind = max(sampled.rewind, sampled.position + 1 - self._at)
        else:
            self._tell(name, objection)

    def _read_again(self, text: str, position: int) -> None:
        """Tokens were taken back, or this is a copy: read the text from its beginning."""
        self._splitter, self._parts = Splitter(self._reading), []
        self._length, self._next = len(text), position
        for span in self._splitter.push(text):
            self._parts = [] if span.calls else self._parts
            self._parts.append(span.more)
        self._name = self._splitter.calling
        if not self._splitter.is_in_call:
            self._since = None
        elif self._since is None or self._since > position:
            self._since = position
        self._at = min(self._at, position)
        if position != self._back:  # somebody else went back: what was tried there is forgotten
            self._tries = {at: tries for at, tries in self._tries.items() if at < position}
            self._warm = self._warm and self._at in self._tries
        self._back = -1
