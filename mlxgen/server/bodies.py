"""Bodies that may use the names of other servers for the fields of ours, and what of them had no
effect."""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from .conversation import as_text
from .errors import RequestError
from .logs import log
from .peers import Rule, name_given, renamed, translated
from .served_model import ServedModel
from .validation import check_body, modelled

M = TypeVar("M", bound=BaseModel)

_MOST_NAMES = 1000  # of unknown fields in the log
_LONGEST = 1000  # characters of a header
_UNSAFE = re.compile(r"[^\x21-\x2b\x2d-\x7e]")
_TALKS = ("messages", "system", "input", "instructions")
_CACHED = "cache_control"  # prefixes are always cached


class Read(NamedTuple, Generic[M]):
    """A request; ``idle`` are its fields without effect, by the names that the client used, and
    ``names`` those that it used instead of ours."""

    request: M
    idle: list[str]
    names: Mapping[str, str]

    def also(self, left_out: Iterable[str]) -> Read[M]:
        """It, if these were left out as well."""
        return self._replace(idle=[*self.idle, *left_out])

    def ignored(
        self, also: Iterable[str] = (), names: Mapping[str, str] = MappingProxyType({})
    ) -> list[str]:
        """The fields without effect, and others of our names that had none; ``names`` are those of
        an API for ours."""
        told = (names.get(name.partition("[")[0], name) for name in also)
        return [*self.idle, *(name_given(name, self.names) for name in told)]


def read(
    body: Mapping[str, Any],
    model: type[M],
    rules: Mapping[str, Rule],
    *,
    served: ServedModel,
) -> Read[M]:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong.

    What in a conversation is no text is replaced. A field that nobody here knows is left out and
    named, unless the ``served`` model wants fields strictly.
    """
    body = {name: as_text(each) if name in _TALKS else each for name, each in body.items()}
    check_body(body)
    fields, names, idle = translated(body, model.model_fields, rules)
    if not served.strict_fields:
        known = {field.alias or name for name, field in model.model_fields.items()}
        unknown = [name for name in fields if name not in known]
        fields = {name: value for name, value in fields.items() if name in known}
        idle += unknown
        for name in unknown:
            _tell(name, [*known, *rules], served)
    try:
        request = modelled(fields, model)
    except RequestError as error:
        raise renamed(error, names) from None
    return Read(request, [*idle, *cache_marks(body)], names)


def _tell(name: str, known: Iterable[str], served: ServedModel) -> None:
    """Say in the log, once for each name, that a field is not known, and which may be meant."""
    if name in served.unknown_fields or len(served.unknown_fields) >= _MOST_NAMES:
        return
    served.unknown_fields.add(name)
    close = difflib.get_close_matches(name[:64], list(known), 1)
    hint = {"did_you_mean": close[0]} if close else {}
    log(logging.WARNING, "ignored an unknown field", field=name[:64], **hint)


# ---- what had no effect ----------------------------------------------------------------------


def cache_marks(body: Mapping[str, Any]) -> list[str]:
    """That a conversation or its tools say what a remote service should cache, if they do."""
    places = ("system", "messages", "input", "tools")
    return [_CACHED] if any(_is_marked(body.get(place)) for place in places) else []


def _is_marked(pieces: Any) -> bool:
    pieces = pieces if isinstance(pieces, list) else [pieces]
    return any(
        _CACHED in piece or _is_marked(piece.get("content")) or _is_marked(piece.get("function"))
        for piece in pieces
        if isinstance(piece, dict)
    )


def header_of(names: Iterable[str]) -> str:
    """The value of the header that names them, safe and short: names that would make it too long
    are left out."""
    safe = dict.fromkeys(_UNSAFE.sub("?", name[:100]) or '""' for name in names)
    text = ", ".join(safe)
    if len(text) <= _LONGEST:
        return text
    return text[:_LONGEST].rpartition(", ")[0] + ", ..."
