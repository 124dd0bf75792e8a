"""The schemas to which the calls of an answer are held, and what checks them if they cannot be."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...filters import Specification
from ..splitter import Reading
from .grammar import notes_of
from .use import ToolUse

if TYPE_CHECKING:
    from .checked import CheckedCalls, Tell


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """The calls that a specification holds to schemas, as far as it can.

    - ``loose``: the tools of which it holds the outline alone; ``checked``: those of which it does
      not hold all. The arguments of both are to be checked.
    - ``spec_of``: the specification if these tools are loose; ``alone``: that of one tool.
    """

    use: ToolUse
    reading: Reading
    loose: frozenset[str]
    checked: frozenset[str]
    spec_of: Callable[[Set[str]], Specification | None]
    alone: Callable[[str], Specification | None]

    @property
    def left_out(self) -> list[str]:
        """What is not enforced of the schemas of strict tools, after the name of each."""
        return [
            f"{tool['function']['name']}:{note}"
            for tool in self.use.tools
            if tool["function"]["name"] in self.use.strict
            for note in notes_of(tool["function"].get("parameters") or {})
        ]

    def hook(self, loose: Set[str], temperature: float, tell: Tell) -> CheckedCalls:
        """What checks the arguments, if these tools are loose."""
        from ...filters.schema.fitting import Fitting
        from .checked import CheckedCalls  # jsonschema takes a while to import

        schemas = {
            tool["function"]["name"]: tool["function"].get("parameters") or {}
            for tool in self.use.tools
        }
        fitting = {name: Fitting(schemas[name]) for name in sorted({*loose, *self.checked})}
        return CheckedCalls(self.reading, fitting, temperature, tell)
