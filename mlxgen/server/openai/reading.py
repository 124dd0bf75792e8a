"""Bodies that may use the names of other servers for the fields of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel

from ..errors import RequestError
from ..fields import check_body
from ..reading import validated
from .peers import PEERS, Rule, renamed, translated

M = TypeVar("M", bound=BaseModel)


def read(body: Mapping[str, Any], model: type[M], rules: Mapping[str, Rule] = PEERS) -> M:
    """Check and validate a body; raises ``RequestError`` for the first thing that is wrong."""
    check_body(body)
    fields, names = translated(dict(body), model.model_fields, rules)
    try:
        return validated(fields, model)
    except RequestError as error:
        raise renamed(error, names) from None
