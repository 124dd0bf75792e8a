"""What a format of calls is for the tools of one request."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from .call import Call, Marks, Offered, Tool
from .formats import CallFormat
from .styles import any_of


class ToolReader:
    """Reads the calls of these tools in a format; for one request.

    ``most``: how many of them are passed on. ``strict``: the tools whose arguments a grammar holds
    to their schemas, after the published mark.
    """

    def __init__(
        self,
        format: CallFormat,
        tools: Sequence[Tool],
        *,
        most: int | None = None,
        strict: Set[str] = frozenset(),
    ) -> None:
        self.format = format
        self.offered = Offered.of(tools)
        self.strict = strict
        self._most = most

    def passes_on(self, before: int) -> bool:
        """Whether another call is passed on, after ``before`` of them."""
        return self._most is None or before < self._most

    def accepts(self, call: Call) -> bool:
        """Whether a call that no grammar held is one: a strict tool's has to fit its schema."""
        if call.name is None or call.name not in self.strict:
            return True
        from ...filters.schema.fitting import (
            Fitting,
            UncheckedError,
        )  # jsonschema takes a while to import

        try:
            return Fitting(self.offered[call.name]).objection(call.given.text) is None
        except UncheckedError:
            return True

    # ---- what the format says of these tools -----------------------------------------------------

    @cached_property
    def starts(self) -> tuple[str, ...]:
        """The marks with which calls begin."""
        return self.format.starts

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The marks with which they end."""
        return tuple(mark for mark in (self.format.end, *self.format.ends) if mark)

    @cached_property
    def bare(self) -> tuple[str, ...]:
        """The beginnings of calls that have lost their mark."""
        return self._named(self.format.bare)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The same at the beginning of a line."""
        return self._named(self.format.lines)

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """The beginnings of calls between the marks, after something else."""
        return self._named([text for style in self.format.styles for text in style.begins])

    @cached_property
    def marks(self) -> Marks:
        """What may come around a call."""
        texts = [text for style in self.format.styles for text in style.begins]
        begins = [text for text in texts if len(text) > 1 and "{name}" not in text]
        around = (*self.ends, *self.starts, *self.format.borders)
        ends = any_of((*self.ends, *self.format.borders))
        return Marks(any_of(self.starts), ends, any_of((*around, *begins)))

    def _named(self, texts: Sequence[str]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        for text in texts:
            names = self.offered if "{name}" in text else ("",)
            found.update(dict.fromkeys(text.replace("{name}", name) for name in names))
        return tuple(found)
