"""What a format of calls is for the tools of one request."""

from __future__ import annotations

from collections.abc import Sequence, Set
from functools import cached_property

from ...filters.schema.fitting import Fitting, UncheckedError
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
        self.most = most

    def accepts(self, call: Call) -> bool:
        """Whether a call that no grammar held is one: a strict tool's has to fit its schema."""
        if call.name is None or call.name not in self.strict:
            return True
        try:
            return Fitting(self.offered[call.name]).objection(call.arguments) is None
        except UncheckedError:
            return True

    # ---- what the format says of these tools -----------------------------------------------------

    def edges(self, part: str, *, section: bool) -> dict[str, str]:
        """The marks of calls in a part of the text, and to what they lead: a call, one that has
        lost its mark, one at the beginning of a line, or the end of several.

        ``section``: calls have begun there, so that the next may come without a mark.
        """
        format = self.format
        edges = {}
        for text in self._named(format.bare):
            if part == "content" or not text.isascii() or "|" in text:
                edges[text] = "bare"
        if section:
            edges |= dict.fromkeys(format.all_ends, "end")
            for text in self._named(format.begins):
                edges.setdefault(text, "bare")
        if part == "content":
            for text in self._named(format.lines):
                edges.setdefault(text, "line")
        return edges

    @cached_property
    def marks(self) -> Marks:
        """What may come around a call."""
        format = self.format
        begins = [text for text in format.begins if len(text) > 1 and "{name}" not in text]
        ends = (*format.all_ends, *format.borders)
        borders = (*ends, *format.starts, *begins)
        return Marks(*map(any_of, (format.starts, ends, begins, borders)))

    def _named(self, texts: Sequence[str]) -> list[str]:
        return [
            text.replace("{name}", name)
            for text in texts
            for name in (self.offered if "{name}" in text else ("",))
        ]
