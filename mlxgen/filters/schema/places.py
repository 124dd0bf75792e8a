"""What a schema says about each place of a document, as the parts of a grammar.

Several schemas may hold for the value at one place: one that the document gives, those that its
``$ref`` and ``allOf`` add, the chosen branch of each ``anyOf`` and ``oneOf``, and, for a key, all
that is said about its value anywhere. Places with the same schemas are one, so a schema may contain
itself.

A ``closed`` object has the keys that are named or required, and no others, if one of its schemas
names keys (``properties``, ``patternProperties``) and none says which others it may have
(``additionalProperties``, ``unevaluatedProperties``) or lists whole values (``const``, ``enum``).
Keys in ``if``, ``then``, ``else`` and ``dependentSchemas`` count as named. A root with
``properties`` and no type must then be an object, although JSON Schema would also take a number.

Invariant: a valid value is refused only for another order of keys, or for another spelling than the
one written here. Keywords that the grammar does not enforce are in ``checked``, and those that
nothing enforces are in ``notes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ...errors import GrammarError
from .fitting import Fitting, UncheckedError, matches
from .keywords import (
    CONDITIONAL,
    SAYING,
    UNHELD,
    Schema,
    is_shut,
    items_of,
    lengths_of,
    list_of,
    literal,
    map_of,
    options_of,
    says,
    span_of,
    types_of,
)
from .patterns import UnsupportedError, spelled
from .references import Said
from .scalars import FORMATS, either, number, scalar, string
from .written import ANY_KEY, Either, Expression, Grammar, Term

MAX_PLACES = 20_000
_OVERLAPS = 3  # patterns of keys whose overlaps are written out
_PAIRS = 5000  # branches of a oneOf that are compared


@dataclass(frozen=True, slots=True)
class Held:
    """A schema as a grammar: ``lark``, whose texts are JSON. ``checked``: the keywords that it does
    not enforce, so that a finished text must be checked. ``notes``: what is left out."""

    lark: str
    checked: Sequence[str] = ()
    notes: Sequence[str] = ()


def held(
    schema: Any,
    *,
    whitespace: str | None,
    separators: tuple[str, str] = (",", ":"),
    closed: bool = False,
    one_of_as_any_of: bool = False,
) -> Held:
    """The grammar of a schema; ``whitespace`` is an expression for what may stand between its parts
    (None: nothing). GrammarError if nothing satisfies the schema, or it is not a valid one."""
    places = Places(schema, separators, closed=closed, one_of_as_any_of=one_of_as_any_of)
    lark = places.grammar.text(whitespace)
    return Held(lark, tuple(places.checked), tuple(places.notes))


class Places:
    """The places of one schema; the first one is the document."""

    def __init__(
        self, root: Any, separators: tuple[str, str], *, closed: bool, one_of_as_any_of: bool
    ) -> None:
        self.checked: dict[str, None] = {}
        self.notes: dict[str, None] = {}
        self.grammar = Grammar(*separators)
        self._closed = closed
        self._any_of = one_of_as_any_of
        named = closed and isinstance(root, Mapping) and "properties" in root
        if named and not root.keys() & {"type", "const", "enum", "$ref"}:
            root = {"type": "object", **root}
        self._fitting = Fitting(root)
        self._references = self._fitting.references
        self._numbers: dict[tuple[int, ...] | str, int] = {}
        self._given: dict[str, int] = {}  # literal values, by their ``repr``
        self._waiting: list[tuple[int, Said]] = []
        try:
            self._place([root])
            while self._waiting:
                number, said = self._waiting.pop()
                self.grammar.places[number] = self._made(said)
        except RecursionError:
            raise GrammarError("the schema is nested too deeply") from None
        except UncheckedError as error:
            raise GrammarError(str(error)) from None

    # ---- places ------------------------------------------------------------------------------

    def _place(self, schemas: Sequence[Any]) -> int:
        """The place for which these schemas hold."""
        said = self._references.said(schemas)
        key = said.never or tuple(map(id, said.plain))
        if key not in self._numbers:
            if len(self._numbers) >= MAX_PLACES:
                raise GrammarError(
                    "its allOf, anyOf and oneOf combine in too many ways; use fewer, or fewer keys"
                )
            self._numbers[key] = self.grammar.added(Either(why=said.never))
            if not said.never:
                self._waiting.append((self._numbers[key], said))
        return self._numbers[key]

    def _made(self, said: Said) -> Expression:
        if said.choice is not None:
            return self._chosen(said.plain, *said.choice)
        given = next((s for s in said.plain if "const" in s or "enum" in s), None)
        if given is not None:
            return self._listed(given, said.plain)
        return self._typed(said.plain)

    def _chosen(self, plain: Sequence[Schema], schema: Schema, keyword: str) -> Expression:
        branches = schema[keyword]
        rest = [self._references.less(s, keyword) if s is schema else s for s in plain]
        if keyword == "oneOf" and len(branches) > 1:
            pairs = list(combinations(branches, 2))
            if self._any_of:
                self.notes["oneOf"] = None
            elif len(pairs) > _PAIRS or not all(self._apart(a, b, 0) for a, b in pairs):
                self.checked["oneOf"] = None
        return Either([self._place([*rest, branch]) for branch in branches], "no branch fits")

    # ---- branches that exclude each other ----------------------------------------------------

    def _apart(self, one: Any, other: Any, depth: int) -> bool:
        """Whether it is certain that no value satisfies both."""
        if depth > 4:
            return False
        sides = [self._references.said([one]), self._references.said([other])]
        if any(side.never for side in sides):
            return True
        both = [*sides[0].plain, *sides[1].plain]
        types = types_of(both)
        if not types:
            return True
        for options in map(options_of, both):
            if options is not None and not any(
                all(self._fits(value, schema) for schema in both) for value in options
            ):
                return True
        if types == {"number"} or types == {"integer"}:
            return span_of(both).is_empty
        if types == {"object"}:
            needed = {name for s in both for name in list_of(s, "required")}
            for name in needed:
                values = [
                    [s["properties"][name] for s in side.plain if name in s.get("properties", {})]
                    for side in sides
                ]
                if all(values) and self._apart(
                    {"allOf": values[0]}, {"allOf": values[1]}, depth + 1
                ):
                    return True
        return False

    def _fits(self, value: Any, schema: Schema) -> bool:
        return self._fitting.fits(value, schema)

    # ---- whole values ------------------------------------------------------------------------

    def _listed(self, given: Schema, plain: Sequence[Schema]) -> Expression:
        """The values that a schema lists, as far as they are valid against the other schemas."""
        rest = [schema for schema in plain if schema is not given]
        rest.append(self._references.less(given, "const" if "const" in given else "enum"))
        if any("unevaluatedProperties" in schema for schema in rest):
            self.checked["unevaluatedProperties"] = None
            rest = [self._references.less(schema, "unevaluatedProperties") for schema in rest]
        fitting = [v for v in options_of(given) or () if all(self._fits(v, s) for s in rest)]
        return either([self._whole(value) for value in fitting], "none of its values fits")

    def _whole(self, value: Any) -> Expression:
        """A literal value; equal ones share one place."""
        if not isinstance(value, list | dict):
            return Term(scalar(value))
        key = repr(value)
        if key not in self._given:
            if isinstance(value, list):
                items = [self._whole(inner) for inner in value]
                made = self.grammar.array(items, None, len(items), len(items))
            else:
                named = [(name, self._whole(inner), True) for name, inner in value.items()]
                made = self.grammar.object(named, ())
            self._given[key] = self.grammar.added(made)
        return self._given[key]

    # ---- values of some types ----------------------------------------------------------------

    def _typed(self, plain: Sequence[Schema]) -> Expression:
        types = types_of(plain)
        for schema in plain:
            self._note_unheld(schema)
            negated = schema.get("not", False)
            if negated is True or (isinstance(negated, Mapping) and not says(negated)):
                return Either(why="not excludes every value")
        made: list[Expression] = []
        if "null" in types:
            made.append(Term('"null"'))
        if "boolean" in types:
            made.append(Term('"true" | "false"'))
        if not types.isdisjoint({"number", "integer"}):
            made.append(number(plain, self.checked, whole="integer" in types))
        if "string" in types:
            made.append(string(plain, self.checked))
        if "array" in types:
            made.append(self._array(plain))
        if "object" in types:
            made.append(self._object(plain))
        whys = [part.why for part in made if isinstance(part, Either) and part.why]
        return either(made, "; ".join(whys) or "no type fits")

    def _note_unheld(self, schema: Schema) -> None:
        if "if" in schema and ("then" in schema or "else" in schema):
            self.checked["if"] = None
        for keyword in UNHELD:
            if keyword in schema and schema[keyword] is not False:
                self.checked[keyword] = None
        name = schema.get("format")
        if isinstance(name, str) and name not in FORMATS:
            self.notes[f"format={name}"] = None

    # ---- arrays ------------------------------------------------------------------------------

    def _array(self, plain: Sequence[Schema]) -> Expression:
        least, most = lengths_of(plain, "minItems", "maxItems")
        if most is not None and most < least:
            return Either(why=f"minItems {least} is above maxItems {most}")
        lists = [items_of(schema) for schema in plain]
        count = max((len(first) for first, _ in lists), default=0)
        count = count if most is None else min(count, most)
        first = [
            self._place([items[i] if i < len(items) else rest for items, rest in lists])
            for i in range(count)
        ]
        for schema in plain:
            if schema.get("uniqueItems") is True and (most is None or most > 1):
                self.checked["uniqueItems"] = None
            for keyword in ("contains", "unevaluatedItems"):
                if keyword in schema and schema[keyword] is not True:
                    self.checked[keyword] = None
            if schema.get("contains") is True or schema.get("minContains", 1) != 1:
                self.checked["contains"] = None
        return self.grammar.array(first, self._place([rest for _, rest in lists]), least, most)

    # ---- objects -----------------------------------------------------------------------------

    def _object(self, plain: Sequence[Schema]) -> Expression:
        least, most = lengths_of(plain, "minProperties", "maxProperties")
        if most is not None and most < least:
            return Either(why=f"minProperties {least} is above maxProperties {most}")
        needed = dict.fromkeys(name for s in plain for name in list_of(s, "required"))
        names = {name: None for s in plain for name in s.get("properties", {})}
        limits = [s["propertyNames"] for s in plain if s.get("propertyNames", True) is not True]
        finite = self._finite(limits)
        keys, only = ([], True) if finite is not None else self._key_limits(limits)
        if finite is not None:
            names = {**names, **dict.fromkeys(finite)}
        named = []
        shuts = self._closed and is_shut(plain)
        if shuts:
            parts = [schema[word] for schema in plain for word in CONDITIONAL if word in schema]
            names |= dict.fromkeys(self._references.named_within(parts, set()))
        for name in {**names, **needed}:
            if all(self._fits(name, limit) for limit in limits if limit is not False) and only:
                named.append((name, self._place(self._values(plain, name)), name in needed))
            elif name in needed:
                return Either(why=f"the required property {name!r} is not one of propertyNames")
        taken = [literal(name) for name, _, _ in named]
        others = [] if finite is not None or not only else self._others(plain, taken, keys, shuts)
        most = None if most is not None and not others and most >= len(named) else most
        if named and (least > max(1, len(needed)) if most is None else most > 1):
            self.checked["minProperties or maxProperties"] = None
        if most is not None and len(needed) > most:
            return Either(why=f"{len(needed)} keys are required, and maxProperties is {most}")
        if not others and len(named) < least:
            return Either(why=f"it has fewer keys than minProperties wants, which is {least}")
        return self.grammar.object(named, others, least, most)

    def _values(self, plain: Sequence[Schema], name: str) -> list[Any]:
        """The schemas of the value of a key."""
        values: list[Any] = []
        is_named = False
        for schema in plain:
            own = [inner for key, inner in map_of(schema, "properties").items() if key == name]
            for pattern, inner in map_of(schema, "patternProperties").items():
                if matches(pattern, name):
                    own.append(inner)
            is_named = is_named or bool(own)
            values += own or [schema.get("additionalProperties", True)]
        return values if is_named else [*values, *self._unevaluated(plain)]

    def _unevaluated(self, plain: Sequence[Schema]) -> list[Any]:
        """The schemas in ``unevaluatedProperties`` for keys that no schema of the object names.

        A schema outside of the keyword's own may name keys that it does not see. This must be
        checked at the end then, and also if several schemas have the keyword, or if those that hold
        on a condition may name keys.
        """
        found = [s["unevaluatedProperties"] for s in plain if "unevaluatedProperties" in s]
        depends = any(word in schema for schema in plain for word in CONDITIONAL)
        if found and (len(plain) > 1 or depends):
            self.checked["unevaluatedProperties"] = None
        opens = depends or any("additionalProperties" in schema for schema in plain)
        return [] if len(found) > 1 or opens else found

    def _finite(self, limits: Sequence[Any]) -> list[str] | None:
        """The only keys that an object may have, if ``propertyNames`` lists them."""
        for limit in limits:
            for schema in self._references.said([limit]).plain:
                options = options_of(schema)
                if options is not None:
                    names = [option for option in options if isinstance(option, str)]
                    return [name for name in names if all(self._fits(name, s) for s in limits)]
        return None

    def _key_limits(self, limits: Sequence[Any]) -> tuple[list[str], bool]:
        """The terminals that all keys must match, and whether any key is possible."""
        texts = []
        for limit in limits:
            said = self._references.said([limit])
            if said.never:
                return [], False
            if said.choice is not None:
                self.checked["propertyNames"] = None
            node = string(said.plain, self.checked)
            if isinstance(node, Either):
                return [], False
            known = {"pattern", "minLength", "maxLength", "type", "format"}
            if any(s.keys() & SAYING - known for s in said.plain):
                self.checked["propertyNames"] = None
            texts.append(node.text)
        return texts, True

    def _others(
        self, plain: Sequence[Schema], taken: Sequence[str], limits: Sequence[str], shuts: bool
    ) -> list[tuple[str, int]]:
        """The kinds of unnamed keys: the terminal of each, and the place of its values."""
        patterns: dict[str, str] = {}
        unknown: list[Any] = []
        for schema in plain:
            for pattern, inner in map_of(schema, "patternProperties").items():
                try:
                    patterns[pattern] = f"({spelled(pattern)})"
                except UnsupportedError:
                    unknown.append(inner)
        if unknown:
            self.checked["patternProperties"] = None
        sizes = range(len(patterns) + 1) if len(patterns) <= _OVERLAPS else range(2)
        kinds = []
        for size in sizes:
            for some in combinations(patterns, size):
                values: list[Any] = []
                for schema in plain:
                    own = [v for p, v in map_of(schema, "patternProperties").items() if p in some]
                    all_known = map_of(schema, "patternProperties").keys() <= patterns.keys()
                    rest = schema.get("additionalProperties", True)
                    values += own or [rest if all_known else True]
                if not some:
                    values += [] if unknown else self._unevaluated(plain)
                    if shuts and not unknown:
                        values.append(False)
                if any(value is False for value in values):
                    continue
                texts = [ANY_KEY] if not some and not limits else []
                texts += [*limits, *(patterns[p] for p in some)]
                texts += [f"~({' | '.join(taken)})"] if taken else []
                texts += [f"~{text}" for p, text in patterns.items() if p not in some]
                kinds.append((" & ".join(texts), self._place(values)))
        return kinds
