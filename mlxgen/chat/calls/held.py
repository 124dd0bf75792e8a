"""The schemas to which the calls of an answer are held."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass

from ...filters import Specification
from .grammar import notes_of
from .use import ToolUse


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """The calls that a specification holds to schemas, as far as it can.

    - ``loose``: the tools of which it holds the outline alone, so that the rest is checked.
    - ``spec_of``: the specification if these tools are loose; ``alone``: that of one tool.
    """

    use: ToolUse
    loose: frozenset[str]
    spec_of: Callable[[Set[str]], Specification | None]
    alone: Callable[[str], Specification | None]

    @property
    def left_out(self) -> list[str]:
        """What is not enforced of the schemas of strict tools, after the name of each."""
        return [
            f"{name}:{note}"
            for name, schema in self.use.schemas.items()
            if name in self.use.strict
            for note in notes_of(schema)
        ]
