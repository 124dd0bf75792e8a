"""Bodies that may use the names of other servers for the fields of ours."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from ..errors import RequestError
from ..fields import check_body
from ..history import Mend
from ..ignored import cache_marks, ignored_fields
from ..logs import log
from ..reading import validated
from ..served_model import ServedModel
from .peers import PEERS, Rule, name_given, renamed, translated

M = TypeVar("M", bound=BaseModel)
_MOST_NAMES = 1000  # of unknown fields in the log


class Read(NamedTuple, Generic[M]):
    """A request; ``idle`` are its fields without effect, by the names that the client used, and
    ``names`` those that it used instead of ours."""

    request: M
    idle: list[str]
    names: Mapping[str, str]

    def ignored(self, also: Iterable[str] = ()) -> list[str]:
        """The fields without effect, and others of our names that had none."""
        return [*self.idle, *(name_given(name, self.names) for name in also)]


def read(
    body: Mapping[str, Any],
    model: type[M],
    rules: Mapping[str, Rule] = PEERS,
    *,
    served: ServedModel,
    mend: Mend | None = None,
) -> Read[M]:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong.

    ``mend`` makes the conversation in it one that can be read. A field that nobody here knows is
    left out and named, unless the ``served`` model wants fields strictly.
    """
    body, left_out = (body, []) if mend is None else mend(body)
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
        request = validated(fields, model)
    except RequestError as error:
        raise renamed(error, names) from None
    known_as = Read(request, [*idle, *left_out, *cache_marks(body)], names)
    return known_as._replace(idle=known_as.ignored(ignored_fields(request)))


def _tell(name: str, known: Iterable[str], served: ServedModel) -> None:
    """Say in the log, once for each name, that a field is not known, and which may be meant."""
    if name in served.unknown_fields or len(served.unknown_fields) >= _MOST_NAMES:
        return
    served.unknown_fields.add(name)
    close = difflib.get_close_matches(name[:64], list(known), 1)
    hint = {"did_you_mean": close[0]} if close else {}
    log(logging.WARNING, "ignored an unknown field", field=name[:64], **hint)
