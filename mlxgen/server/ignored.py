"""What of a request had no effect: accepted fields, and the header of the answer that names them.

Invariant: the header is safe and short, whatever the request says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

HEADER = b"x-mlxgen-ignored"
_LONGEST = 1000  # characters of its value
_UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
_MARK = "cache_control"  # prefixes are always cached


@dataclass(frozen=True, slots=True)
class _NoEffect:
    """In the type of a field that is accepted and changes nothing."""


NO_EFFECT = _NoEffect()


def ignored_fields(request: BaseModel, at: str = "") -> Iterator[str]:
    """The fields of a request that are marked so, inside others as well, but not in lists."""
    for name, field in type(request).model_fields.items():
        value = getattr(request, name)
        if value is None:
            continue
        place = f"{at}{field.alias or name}"
        if NO_EFFECT in field.metadata:
            yield place
        elif isinstance(value, BaseModel):
            yield from ignored_fields(value, f"{place}.")


def cache_marks(body: Mapping[str, Any]) -> list[str]:
    """That a conversation or its tools say what a remote service should cache, if they do."""
    places = ("system", "messages", "input", "tools")
    return [_MARK] if any(_is_marked(body.get(place)) for place in places) else []


def _is_marked(pieces: Any) -> bool:
    pieces = pieces if isinstance(pieces, list) else [pieces]
    return any(
        _MARK in piece or _is_marked(piece.get("content")) or _is_marked(piece.get("function"))
        for piece in pieces
        if isinstance(piece, dict)
    )


def header_of(names: Iterable[str]) -> str:
    """The value of the header; names that would make it too long are left out."""
    safe = dict.fromkeys(_UNSAFE.sub("?", name[:100]) for name in names)
    text = ", ".join(safe)
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition(", ")[0] + ", ..."
