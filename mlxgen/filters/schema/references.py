"""What a JSON schema says once its references are followed: ``$ref``, ``$id`` and ``$anchor``.

Nothing outside the document is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from ...errors import GrammarError
from ...words import shortened
from .keywords import CHOICES, Schema, check, list_of, map_of, says


@dataclass(slots=True)
class Said:
    """What is said about one place: schemas without references, and a choice that is still open."""

    plain: list[Schema] = field(default_factory=list)
    choice: tuple[Schema, str] | None = None
    never: str = ""  # why nothing satisfies it


class References:
    """The references of one schema."""

    def __init__(self, root: Any) -> None:
        self._bases: dict[int, str] = {}  # by the id() of a part
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[str, Any] = {}
        self._made_of: dict[tuple[int, str], tuple[Schema, Schema]] = {}
        for part, base in _parts(root):
            self._bases[id(part)] = base
            self._resources.setdefault(base, part)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := part.get(keyword), str):
                    self._anchors.setdefault(f"{base}#{anchor}", part)
            if isinstance(name := part.get("$id"), str) and "#" in name:  # as in draft 7
                self._anchors.setdefault(f"{base}#{urldefrag(name).fragment}", part)

    @property
    def is_one_document(self) -> bool:
        """Whether no part of the schema has an address of its own."""
        return all(part is self._resources[""] for part in self._resources.values())

    def find(self, part: Mapping[str, Any], reference: str) -> Any:
        """The target of a reference in a part of the schema; LookupError if there is none."""
        try:
            address = urljoin(self._bases.get(id(part), ""), reference)
        except ValueError as error:
            raise LookupError(reference) from error
        resource, fragment = urldefrag(address)
        if fragment and not fragment.startswith("/"):
            return self._anchors[address]
        for pointer in (unquote(fragment), fragment):  # the latter for a name without escapes
            with suppress(LookupError, TypeError, ValueError):  # an index may be any text
                return _at_pointer(self._resources[resource], pointer)
        raise LookupError(reference)

    def target(self, schema: Schema) -> Any:
        name = schema["$ref"]
        try:
            return self.find(schema, name)
        except LookupError:
            raise GrammarError(
                f"$ref {shortened(name)!r} does not exist: it is not present in the schema, and "
                "nothing else is looked up"
            ) from None

    def less(self, schema: Schema, keyword: str) -> Schema:
        """The schema without a keyword; always the same object."""
        key = id(schema), keyword
        if key not in self._made_of:
            rest = {name: value for name, value in schema.items() if name != keyword}
            self._made_of[key] = rest, schema
            self._bases[id(rest)] = self._bases.get(id(schema), "")
        less: Schema = self._made_of[key][0]
        return less

    def named_within(self, part: Any, seen: set[int]) -> Iterator[str]:
        """The keys that are named or required anywhere in a part of the schema."""
        if isinstance(part, Mapping) and id(part) not in seen:
            seen.add(id(part))
            yield from map_of(part, "properties")
            yield from (name for name in list_of(part, "required") if isinstance(name, str))
            meant = [self.target(part)] if isinstance(part.get("$ref"), str) else []
            yield from self.named_within([*part.values(), *meant], seen)
        elif isinstance(part, list):
            for inner in part:
                yield from self.named_within(inner, seen)

    def said(self, schemas: Sequence[Any]) -> Said:
        said, seen = Said(), set[int]()
        for schema in schemas:
            self._collect(schema, said, seen, frozenset())
        return said

    def _collect(self, schema: Any, said: Said, seen: set[int], within: frozenset[int]) -> None:
        if schema is True or said.never:
            return
        if schema is False:
            said.never = "a false schema"
            return
        if id(schema) in within:
            said.never = "it refers to itself and never ends"
            return
        if id(schema) in seen:
            return
        seen.add(id(schema))
        check(schema)
        within = within | {id(schema)}
        rest = schema
        for keyword in ("$ref", "allOf"):
            rest = self.less(rest, keyword) if keyword in rest else rest
        if says(rest):
            said.plain.append(rest)
            for keyword in CHOICES:
                if keyword in rest and said.choice is None:
                    said.choice = rest, keyword
        if isinstance(schema.get("$ref"), str):
            self._collect(self.target(schema), said, seen, within)
        for part in schema.get("allOf", ()):
            self._collect(part, said, seen, within)


def _parts(root: Any) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Every object of the document, and the address to which its references are relative."""
    waiting = [(root, "")]
    while waiting:
        part, base = waiting.pop()
        if isinstance(part, Mapping):
            if isinstance(part.get("$id"), str):
                with suppress(ValueError):  # left for the engine to report
                    base = urldefrag(urljoin(base, part["$id"])).url
            yield part, base
            waiting += [(inner, base) for inner in part.values()]
        elif isinstance(part, list):
            waiting += [(inner, base) for inner in part]


def _at_pointer(part: Any, pointer: str) -> Any:
    """The part at which a JSON pointer points."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        part = part[int(name) if isinstance(part, list) and name.isdecimal() else name]
    return part
