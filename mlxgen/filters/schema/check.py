"""The check of a finished text against the schema that it was promised to fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from .fitting import Fitting, UncheckedError
from .written import parsed


class Objection(NamedTuple):
    """What is wrong with a text: ``reason``, of the newest ``tokens`` that a filter was fed.

    ``is_final``: the text must not stand.
    """

    reason: str
    tokens: int
    is_final: bool


@dataclass(frozen=True, slots=True)
class Check:
    """A schema, as JSON text, for texts of its grammar.

    - ``keywords``: those that the grammar does not hold, so that the text may not fit.
    - ``notes``: what is not even checked.
    - ``lenient``: whether a text that does not fit may stand, if no other one is found.
    - ``one_of_as_any_of``: as in ``JsonSchema``.
    """

    schema: str
    keywords: Sequence[str] = ()
    notes: Sequence[str] = ()
    lenient: bool = False
    one_of_as_any_of: bool = False

    def objection(self, text: str) -> str | None:
        """What is wrong with a finished text, if anything is."""
        try:
            return _fitting(self.schema, self.one_of_as_any_of).objection(text)
        except UncheckedError as error:
            return f"it cannot be checked: {error}" if self.keywords else None


@lru_cache(64)
def _fitting(schema: str, one_of_as_any_of: bool) -> Fitting:
    read = parsed(schema)
    if one_of_as_any_of:
        read = _any_of(read)
    return Fitting(read if isinstance(read, dict) else {})


def _any_of(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_any_of(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _any_of(value) for key, value in schema.items() if key != "oneOf"}
    if "oneOf" in schema:
        changed.setdefault("allOf", [])
        if isinstance(changed["allOf"], list):
            changed["allOf"] = [*changed["allOf"], {"anyOf": _any_of(schema["oneOf"])}]
    return changed
