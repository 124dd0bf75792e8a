"""Specifications of JSON: ``JsonSchema`` and ``JsonObject``.

By default, white space is bounded, whatever the schema says, because models loop on it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

from ..errors import GrammarError, OptionError
from ..tokens import Vocabulary
from .engine import Grammar, shortened
from .grammar import OfGrammar
from .schema.fitting import Check
from .schema.keywords import parsed
from .schema.places import held

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
class JsonSchema(OfGrammar):
    """JSON that is valid against a schema.

    schema              a mapping, its JSON text, True (any JSON), or a class that has
                        ``model_json_schema``; properties come in the order of the schema
    whitespace          what may stand between the parts of the text, as a regular expression;
                        None: nothing, so that the text is compact
    separators          between items and after keys, as in ``json.dumps``
    one_of_as_any_of    treat ``oneOf`` as ``anyOf`` even if they cannot be shown to be the same
    ignore_unsupported  let a text stand that violates the schema if no valid one was found;
                        ``Usage.violates`` says what is wrong with it. Otherwise such a text
                        is a DeadEndError
    closed              if the schema of an object names keys (``properties``,
                        ``patternProperties``) and says nothing about others
                        (``additionalProperties``, ``unevaluatedProperties``), the object has the
                        keys that are named or required, and no others. ``allOf`` counts as a
                        whole, ``anyOf`` and ``oneOf`` by the branch that the text follows. A root
                        with ``properties`` and no type is an object. By default such objects are
                        open, as in JSON Schema; ``additionalProperties: true`` opens one of them

    What no grammar can express (such as ``uniqueItems``, ``not``, a pattern that looks around) is
    checked at the end: such a text is not delivered before, and if it is not valid, it is taken
    back and drawn again, a few times. ``left_out`` names what is not even checked.

    Open objects (and ``patternProperties``) may have a key twice, and a named key again in another
    spelling (``"\\u0061"`` for ``"a"``); JSON parsers take the last one. Objects with named keys
    only never do.
    """

    schema: Schema  # kept as its JSON text
    _: KW_ONLY
    whitespace: str | None = WHITESPACE
    separators: tuple[str, str] = (",", ":")
    one_of_as_any_of: bool = False
    ignore_unsupported: bool = False
    closed: bool = False
    _made: list[Grammar] = field(init=False, repr=False, compare=False, default_factory=list)

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

    @property
    def left_out(self) -> Sequence[str]:
        """What is not enforced of the schema, such as formats that are only annotations."""
        check = self._once().check
        return () if check is None else check.notes

    def _grammar(self, vocabulary: Vocabulary) -> Grammar:
        return self._once()

    def _once(self) -> Grammar:
        """The grammar, made once, because the rows of a batch bind the same specification."""
        if not self._made:
            self._made.append(self._make())
        return self._made[0]

    def _make(self) -> Grammar:
        text = _text(self.schema)
        name = shortened(f"JsonSchema({text})")
        schema = _parsed(text, name)
        try:
            made = held(
                schema,
                whitespace=self.whitespace,
                separators=self.separators,
                closed=self.closed,
                one_of_as_any_of=self.one_of_as_any_of,
            )
        except GrammarError as error:
            raise GrammarError(f"{name}: {error}") from error
        check = Check(
            text, made.checked, made.notes, self.ignore_unsupported, self.one_of_as_any_of
        )
        grammar = Grammar.of_lark(made.lark, name, check)
        if self.whitespace is None:
            return grammar
        return grammar.after(f"/({_AROUND})?/", skips_space=True)


@dataclass(frozen=True, slots=True, init=False)
class JsonObject(OfGrammar):
    """Any JSON object. The options are those of ``JsonSchema``."""

    schema: JsonSchema

    def __init__(
        self,
        *,
        whitespace: str | None = WHITESPACE,
        separators: tuple[str, str] = (",", ":"),
    ) -> None:
        schema = JsonSchema({"type": "object"}, whitespace=whitespace, separators=separators)
        object.__setattr__(self, "schema", schema)

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
        schema = parsed(text)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"{name}: the schema is not JSON: {error}") from error
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"{name}: expected an object or a boolean, got {type(schema).__name__}")
    return schema
