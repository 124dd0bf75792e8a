"""What the references in a JSON schema refer to: ``$ref``, ``$id`` and ``$anchor``.

Nothing outside the document is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin


class References:
    """The references of one schema."""

    def __init__(self, root: Any) -> None:
        self._bases: dict[int, str] = {}  # by the id() of a part
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[str, Any] = {}
        for part, base in _parts(root):
            self._bases[id(part)] = base
            self._resources.setdefault(base, part)
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(anchor := part.get(keyword), str):
                    self._anchors.setdefault(f"{base}#{anchor}", part)
            if isinstance(name := part.get("$id"), str) and "#" in name:  # as in draft 7
                self._anchors.setdefault(f"{base}#{urldefrag(name).fragment}", part)

    def liken(self, copy: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Take a changed copy for a part of the schema that stands where ``part`` does."""
        self._bases[id(copy)] = self._bases.get(id(part), "")

    @property
    def is_one_document(self) -> bool:
        """Whether no part of the schema has an address of its own."""
        return all(part is self._resources[""] for part in self._resources.values())

    def find(self, part: Mapping[str, Any], reference: str) -> Any:
        """What a reference in a part of the schema refers to; LookupError if there is nothing."""
        try:
            address = urljoin(self._bases.get(id(part), ""), reference)
        except ValueError as error:
            raise LookupError(reference) from error
        resource, fragment = urldefrag(address)
        if fragment and not fragment.startswith("/"):
            return self._anchors[address]
        for pointer in (unquote(fragment), fragment):  # which is a name that nobody has escaped
            with suppress(LookupError, TypeError):
                return _at_pointer(self._resources[resource], pointer)
        raise LookupError(reference)


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
    """What a JSON pointer points at."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        part = part[int(name) if isinstance(part, list) and name.isdecimal() else name]
    return part
