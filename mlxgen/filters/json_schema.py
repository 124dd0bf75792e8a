"""Specifications of JSON: ``JsonSchema`` and ``JsonObject``.

By default, white space is bounded, whatever the schema says, because models loop on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

from ..errors import GrammarError, OptionError
from ..tokens import Vocabulary
from .closed_objects import closed_objects
from .compiled import Grammar
from .endless import why_endless
from .grammar import bind, bind_opening
from .reasons import shortened

WHITESPACE = r"[ \t]{1,8}|\r?\n[ \t]{0,40}"
"""Between the parts of a JSON text: a few blanks, or one line break and its indentation."""

_AROUND = r"[ \t\r\n]{1,8}"  # before the whole text, because models like to begin with blank lines


@runtime_checkable
class SupportsJsonSchema(Protocol):
    """A pydantic model class, or anything else that knows its schema."""

    def model_json_schema(self) -> Mapping[str, Any]:
        """The schema."""


Schema: TypeAlias = Mapping[str, Any] | str | bool | SupportsJsonSchema | type[Any]


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that is valid against a schema.

    schema              a mapping, its JSON text, True (any JSON), or a class that has
                        ``model_json_schema``; properties come in the order of the schema
    whitespace          what may stand between the parts of the text, as a regular expression;
                        None: nothing, so that the text is compact
    separators          between items and after keys, as in ``json.dumps``
    one_of_as_any_of    take ``oneOf`` for ``anyOf`` even if it cannot be shown to be the same
    ignore_unsupported  leave out keywords that the engine does not support, so that the text
                        may violate them; otherwise a GrammarError names them
    closed              if the schema of an object names keys (``properties``,
                        ``patternProperties``) and says nothing about others
                        (``additionalProperties``, ``unevaluatedProperties``), the object has the
                        keys that are named or required, and no others. ``allOf`` counts together,
                        and of ``anyOf`` and ``oneOf`` the branch that the text follows. A root
                        with ``properties`` and no type is an object. By default such objects are
                        open, as in JSON Schema; ``additionalProperties: true`` opens one of them

    Open objects (and ``patternProperties``) may have a key twice, and a named key again in another
    spelling (``"\\u0061"`` for ``"a"``), of which JSON parsers take the last. Objects with named
    keys only never do.
    """

    schema: Schema  # kept as its JSON text
    _: KW_ONLY
    whitespace: str | None = WHITESPACE
    separators: tuple[str, str] = (",", ":")
    one_of_as_any_of: bool = False
    ignore_unsupported: bool = False
    closed: bool = False
    _made: list[Grammar] = field(init=False, repr=False, compare=False, default_factory=list)

    by_bytes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        separators, whitespace = self.separators, self.whitespace
        object.__setattr__(self, "schema", _text(self.schema))
        object.__setattr__(self, "separators", tuple(separators))
        if len(self.separators) != 2 or not all(isinstance(s, str) for s in self.separators):
            raise OptionError(
                "filters", f"JsonSchema: separators: expected two strings, got {separators!r}"
            )
        if whitespace is not None and not isinstance(whitespace, str):
            raise OptionError(
                "filters",
                f"JsonSchema: whitespace: expected an expression or None, got {whitespace!r}",
            )

    bind = bind
    bind_opening = bind_opening

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        """The grammar, made once, because the rows of a batch bind the same specification."""
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    def _make(self) -> Grammar:
        text = _text(self.schema)
        name = shortened(f"JsonSchema({text})")
        schema = _parsed(text, name)
        if endless := why_endless(schema):
            raise GrammarError(f"{name}: {endless}")
        if self.closed:
            try:
                schema = closed_objects(schema)
            except GrammarError as error:
                raise GrammarError(f"{name}: {error}") from error
        if schema is True:
            schema = {}
        elif schema is False:
            raise GrammarError(f"{name}: no text satisfies it")
        options: dict[str, Any] = {
            "whitespace_flexible": self.whitespace is not None,
            "item_separator": self.separators[0],
            "key_separator": self.separators[1],
            "coerce_one_of": self.one_of_as_any_of,
            "lenient": self.ignore_unsupported,
        }
        if self.whitespace is not None:
            options["whitespace_pattern"] = self.whitespace
        inner = Grammar.of_json_schema({**schema, "x-guidance": options}, name)
        return (
            inner if self.whitespace is None else inner.after(f"/({_AROUND})?/", skips_space=True)
        )


@dataclass(frozen=True, slots=True, init=False)
class JsonObject:
    """Any JSON object. The options are those of ``JsonSchema``."""

    schema: JsonSchema

    by_bytes: ClassVar[bool] = True

    def __init__(
        self,
        *,
        whitespace: str | None = WHITESPACE,
        separators: tuple[str, str] = (",", ":"),
    ) -> None:
        schema = JsonSchema({"type": "object"}, whitespace=whitespace, separators=separators)
        object.__setattr__(self, "schema", schema)

    bind = bind
    bind_opening = bind_opening

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        return self.schema._grammar(vocabulary)


def _text(schema: Schema) -> str:
    if isinstance(schema, SupportsJsonSchema):
        schema = schema.model_json_schema()
    if isinstance(schema, str):
        return schema
    if not isinstance(schema, Mapping | bool):
        raise OptionError("filters", f"JsonSchema: expected a schema, got {schema!r}")
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise OptionError("filters", f"JsonSchema: the schema is not JSON: {error}") from error


def _parsed(text: str, name: str) -> Any:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{name}: the schema is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"{name}: expected an object or a boolean, got {type(schema).__name__}")
    return schema
