"""What the references in a JSON schema refer to: ``$ref``, ``$id`` and ``$anchor``.

Nothing outside the document is looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

_NOTHING = object()


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

    def find(self, part: Mapping[str, Any], default: Any = None) -> Any:
        """What the ``$ref`` of a part of the schema refers to, or ``default``."""
        reference = part["$ref"]
        if not isinstance(reference, str):
            return default
        try:
            address = urljoin(self._bases.get(id(part), ""), reference)
        except ValueError:
            return default
        resource, fragment = urldefrag(address)
        if fragment and not fragment.startswith("/"):
            return self._anchors.get(address, default)
        if resource not in self._resources:
            return default
        within = self._resources[resource]
        found = _at_pointer(within, unquote(fragment), _NOTHING)
        if found is _NOTHING:  # a name that nobody has escaped
            found = _at_pointer(within, fragment, default)
        return found


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


def _at_pointer(part: Any, pointer: str, default: Any) -> Any:
    """What a JSON pointer points at, or ``default``."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping) and name in part:
            part = part[name]
        elif isinstance(part, list) and name.isdecimal() and int(name) < len(part):
            part = part[int(name)]
        else:
            return default
    return part
