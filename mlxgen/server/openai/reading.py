"""Bodies that may use the names of other servers for the fields of ours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from ..errors import RequestError
from ..fields import check_body
from ..ignored import cache_marks, ignored_fields
from ..reading import validated
from .peers import PEERS, Rule, name_given, renamed, translated

M = TypeVar("M", bound=BaseModel)


class Read(NamedTuple, Generic[M]):
    """A request; ``idle`` are its fields without effect, by the names that the client used, and
    ``names`` those that it used instead of ours."""

    request: M
    idle: list[str]
    names: Mapping[str, str]

    def ignored(self, also: Iterable[str] = ()) -> list[str]:
        """The fields without effect, and others of our names that had none."""
        return [*self.idle, *(name_given(name, self.names) for name in also)]


def read(body: Mapping[str, Any], model: type[M], rules: Mapping[str, Rule] = PEERS) -> Read[M]:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong."""
    check_body(body)
    fields, names, idle = translated(dict(body), model.model_fields, rules)
    try:
        request = validated(fields, model)
    except RequestError as error:
        raise renamed(error, names) from None
    known = Read(request, [*idle, *cache_marks(body)], names)
    return known._replace(idle=known.ignored(ignored_fields(request)))
