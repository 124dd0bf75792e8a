"""What the text of an answer must match, in any of the fields that can say so.

Invariant: there is at most one constraint, and it knows the field that it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...chat.calls.use import Form
from ...errors import MlxgenError
from ...filters import Choice, JsonObject, JsonSchema, Lark, Regex, Specification
from ...filters.gbnf import is_gbnf, lark_of
from ..errors import RequestError, as_request_error
from .peers import PEERS, Rule, SameAs
from .schemas import GenerationRequest, ObjectFormat, ResponseFormat, SchemaFormat, TextFormat

_MAKERS: dict[str, Callable[[Any], Specification]] = {
    "json_schema": lambda schema: JsonSchema(schema, closed=True),
    "regex": lambda pattern: Regex(pattern),
    "grammar": lambda grammar: Lark(lark_of(grammar) if is_gbnf(grammar) else grammar),
    "choice": lambda options: Choice(options),
}

_FIELDS = ("response_format", *_MAKERS, "tools")


def constraining(body: Mapping[str, Any]) -> list[str]:
    """The fields of a body that become grammars, by whatever name."""
    return [name for name in body if body[name] is not None and _constrains(name, PEERS.get(name))]


def _constrains(name: str, rule: Rule | None) -> bool:
    if isinstance(rule, Mapping):
        return any(_constrains("", inner) for inner in rule.values())
    return (rule.field if isinstance(rule, SameAs) else name) in _FIELDS


def form_of(request: GenerationRequest) -> Form | None:
    """What the text must match; raises ``RequestError`` if it is invalid or more than one."""
    given = [name for name in _MAKERS if getattr(request, name) is not None]
    format = request.response_format
    if format is not None and not isinstance(format, TextFormat):
        given.insert(0, "response_format")
    if not given:
        return None
    field = given[0]
    if len(given) > 1:
        raise RequestError.at(given[1], f"cannot be combined with {field}; send one of them")
    try:
        if field == "response_format":
            assert format is not None
            return _of_format(field, format)
        if field == "json_schema":
            return json_form(field, request.json_schema)
        return Form(field, _MAKERS[field](getattr(request, field)))
    except MlxgenError as error:
        raise as_request_error(error, {"filters": field}) from error


def _of_format(field: str, format: ResponseFormat) -> Form:
    if isinstance(format, ObjectFormat):
        return Form(field, JsonObject(), is_json=True)
    assert isinstance(format, SchemaFormat)
    return json_form(field, format.json_schema.schema_)


def json_form(field: str, schema: Any) -> Form:
    """JSON that matches a schema; any object without one. Objects are closed, unless the schema
    opens them."""
    if schema is None:
        return Form(field, JsonObject(), is_json=True)
    return Form(field, JsonSchema(schema, closed=True), is_json=True)
