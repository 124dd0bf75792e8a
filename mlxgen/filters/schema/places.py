"""What a schema says about each place of a document, as the parts of a grammar.

A place is a value about which a few schemas hold at once: one that the document gives, what its
``$ref`` and ``allOf`` add, the branch that is followed of each ``anyOf`` and ``oneOf``, and for a
key all that is said about its value anywhere. Places with the same schemas are one, so that a
schema may contain itself.

A ``closed`` object has the keys that are named or required, and no others: if something said about
it names keys (``properties``, ``patternProperties``) and nothing says which others it may have
(``additionalProperties``, ``unevaluatedProperties``) or gives it whole (``const``, ``enum``). Keys
in ``if``, ``then``, ``else`` and ``dependentSchemas`` count as named. A root that has
``properties`` and no type is an object then, although JSON Schema would also take a number.

Invariant: what is valid is refused only if it has another order of keys or another spelling than
the one that is written. What the parts do not hold of the schema is in ``checked``, and what
nobody holds is in ``notes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import combinations
from typing import Any

from ...errors import GrammarError
from .fitting import Fitting, UncheckedError, matches
from .formats import FORMATS
from .keywords import (
    CHOICES,
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
from .scalars import either, number, scalar, string, without_values
from .written import ANY_KEY, Either, Expression, Grammar, Term

MAX_PLACES = 20_000
_OVERLAPS = 3  # patterns of keys whose overlaps are written out
_OPENING = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_PAIRS = 5000  # branches of a oneOf that are compared


@dataclass(frozen=True, slots=True)
class Held:
    """A schema as a grammar: ``lark``, of which the texts are JSON. ``checked``: the keywords that
    it does not hold, so that a finished text is to be checked. ``notes``: what is left out."""

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
    (None: nothing). GrammarError if nothing satisfies it, or it is no schema."""
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
        self._numbers: dict[tuple[int, ...], int] = {}
        self._given: dict[str, int] = {}  # values that are given whole
        self._waiting: list[tuple[int, Sequence[Any]]] = []
        try:
            self._place([root])
            while self._waiting:
                number, schemas = self._waiting.pop()
                self.grammar.places[number] = self._made(schemas)
        except RecursionError:
            raise GrammarError("the schema is nested too deeply") from None
        except UncheckedError as error:
            raise GrammarError(str(error)) from None

    # ---- places ------------------------------------------------------------------------------

    def _place(self, schemas: Sequence[Any]) -> int:
        """The place about which these schemas hold."""
        some = []
        for schema in schemas:
            schema = self._references.meant(schema)
            if schema is False or says(schema):
                some.append(schema)
        some = list({id(schema): schema for schema in some}.values())
        key = tuple(map(id, some))
        if key not in self._numbers:
            if len(self._numbers) >= MAX_PLACES:
                raise GrammarError(
                    "its allOf, anyOf and oneOf combine in too many ways; use fewer, or fewer keys"
                )
            self._numbers[key] = self.grammar.added(Either())
            self._waiting.append((self._numbers[key], some))
        return self._numbers[key]

    def _made(self, schemas: Sequence[Any]) -> Expression:
        said = self._references.said(schemas)
        if said.never:
            return Either(why=said.never)
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
        """The values that a schema lists, as far as they fit the other ones."""
        rest = [schema for schema in plain if schema is not given]
        rest.append(self._references.less(given, "const" if "const" in given else "enum"))
        if any("unevaluatedProperties" in schema for schema in rest):
            self.checked["unevaluatedProperties"] = None
            rest = [self._references.less(schema, "unevaluatedProperties") for schema in rest]
        fitting = [v for v in options_of(given) or () if all(self._fits(v, s) for s in rest)]
        return either([self._whole(value) for value in fitting], "none of its values fits")

    def _whole(self, value: Any) -> Expression:
        """A value that is given; one place for all that are the same."""
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
        nots = [schema["not"] for schema in plain if "not" in schema]
        for negated in nots:
            if negated is True or (isinstance(negated, Mapping) and not says(negated)):
                return Either(why="not excludes every value")
            types = self._without(types, negated)
        made: list[Expression] = []
        if "null" in types:
            made.append(Term('"null"'))
        if "boolean" in types:
            made.append(Term('"true" | "false"'))
        if not types.isdisjoint({"number", "integer"}):
            found = number(plain, self.checked, whole="integer" in types)
            made.append(without_values(found, nots, (int, float, Decimal)))
        if "string" in types:
            made.append(without_values(string(plain, self.checked), nots, (str,)))
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
            if keyword in schema:
                self.checked[keyword] = None
        name = schema.get("format")
        if isinstance(name, str) and name not in FORMATS:
            self.notes[f"format={name}"] = None

    def _without(self, types: set[str], negated: Any) -> set[str]:
        """The types that ``not`` leaves, as far as that is simple; else it is to be checked."""
        if negated is False:
            return types
        said = self._references.said([negated])
        if len(said.plain) == 1 and said.choice is None:
            (only,) = said.plain
            saying = only.keys() & SAYING
            if saying == {"type"} and (out := types_of([only])) and "integer" not in out:
                return types - out - ({"integer"} if "number" in out else set())
            options = options_of(only)
            if options is not None and len(saying) == 1:
                held = all(option is None or isinstance(option, str) for option in options)
                if not held:
                    self.checked["not"] = None
                return types - {"null"} if None in options else types
        self.checked["not"] = None
        return types

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
        more = {name: None for s in plain for name in self._conditional(s)[0]}
        limits = [s["propertyNames"] for s in plain if s.get("propertyNames", True) is not True]
        finite = self._finite(limits)
        keys, only = ([], True) if finite is not None else self._key_limits(limits)
        if finite is not None:
            names = {**names, **dict.fromkeys(finite)}
        named = []
        shuts = self._closed and is_shut(plain)
        knows = shuts or any("unevaluatedProperties" in schema for schema in plain)
        for name in {**names, **(more if knows else {}), **needed}:
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

    def _conditional(self, schema: Schema) -> tuple[dict[str, None], bool]:
        """The keys that are named in the parts of a schema that hold only on some condition, and
        whether these parts say something about others."""
        waiting = [schema[keyword] for keyword in CONDITIONAL if keyword in schema]
        for keyword in ("dependentSchemas", "dependencies"):
            waiting += list(map_of(schema, keyword).values())
        names: dict[str, None] = {}
        opens, seen = False, set[int]()
        while waiting:
            part = waiting.pop(0)
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            names |= dict.fromkeys(map_of(part, "properties"))
            names |= dict.fromkeys(n for n in list_of(part, "required") if isinstance(n, str))
            opens = opens or not _OPENING.isdisjoint(part)
            waiting += [each for word in ("allOf", *CHOICES) for each in list_of(part, word)]
            waiting += [part[keyword] for keyword in CONDITIONAL if keyword in part]
            if isinstance(part.get("$ref"), str):
                waiting.append(self._references.target(part))
        return names, opens

    def _values(self, plain: Sequence[Schema], name: str) -> list[Any]:
        """The schemas of the value of a key."""
        values: list[Any] = []
        for schema in plain:
            own = [inner for key, inner in map_of(schema, "properties").items() if key == name]
            for pattern, inner in map_of(schema, "patternProperties").items():
                if matches(pattern, name):
                    own.append(inner)
            values += own or [schema.get("additionalProperties", True)]
        wanted = self._unevaluated(plain, name)
        if wanted and any(
            name in map_of(s, "properties")
            or name in self._conditional(s)[0]
            or any(matches(p, name) for p in map_of(s, "patternProperties"))
            for s in plain
        ):
            return values
        return [*values, *wanted]

    def _unevaluated(self, plain: Sequence[Schema], name: str | None) -> list[Any]:
        """What ``unevaluatedProperties`` says of keys that nothing said about the object names.

        What stands outside of its schema may name a key, and it does not know that: this is to be
        checked then, and so is what it says if others say it too.
        """
        found = [s["unevaluatedProperties"] for s in plain if "unevaluatedProperties" in s]
        if not found:
            return []
        if len(plain) > 1 or any(self._conditional(s)[1] for s in plain):
            self.checked["unevaluatedProperties"] = None
        opens = any("additionalProperties" in s or self._conditional(s)[1] for s in plain)
        return [] if len(found) > 1 or opens else found

    def _finite(self, limits: Sequence[Any]) -> list[str] | None:
        """The only keys that there may be, if ``propertyNames`` lists them."""
        for limit in limits:
            for schema in self._references.said([limit]).plain:
                options = options_of(schema)
                if options is not None:
                    names = [option for option in options if isinstance(option, str)]
                    return [name for name in names if all(self._fits(name, s) for s in limits)]
        return None

    def _key_limits(self, limits: Sequence[Any]) -> tuple[list[str], bool]:
        """The terminals that all keys have to match, and whether there may be any keys."""
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
        """The kinds of keys that are not named: the terminal and the place of each."""
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
                    values += [] if unknown else self._unevaluated(plain, None)
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
