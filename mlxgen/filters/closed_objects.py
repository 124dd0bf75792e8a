"""Objects without keys that nobody asked for: a schema rewritten as if its objects were closed.

The result says so by ``additionalProperties``, which engines understand.

An object is closed if its schema names keys (by ``properties`` or ``patternProperties``, even
empty ones) and says nothing about others: neither ``additionalProperties`` nor
``unevaluatedProperties``, nor whole values by ``const`` or ``enum``. Then it may have the keys
that are named or required, and no others. What is said about one object in several places counts
together: all of ``allOf``, what ``$ref`` refers to, and of each ``anyOf`` and ``oneOf`` the branch
that the text follows; so does what these say about the value of one key. Keys in ``if``, ``then``,
``else`` and ``dependentSchemas`` count as named, too. A schema that names no keys, such as
``{"type": "object"}``, leaves its objects open. A root that has ``properties`` and no type is an
object, although JSON Schema would also take any number or text.

Invariant: the schema takes everything that the result takes; and if an object has only keys that
are named by the branches it follows, the result refuses it only if the schema does. References are
rewritten to definitions of the result; those that lead nowhere are left for the engine to report.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from ..errors import GrammarError
from .references import References

Object: TypeAlias = dict[str, Any]

_STEPS = 50_000  # some 5 µs each, at most; hostile schemas combine without end
_STEPS_EACH = 10  # more of them for each object in the schema
_VALUES = ("items", "additionalItems", "additionalProperties", "prefixItems")
_NAMED_VALUES = ("properties", "patternProperties")
_CHOICES = ("anyOf", "oneOf")
_CONDITIONAL = ("if", "then", "else")
_NO_MORE = ("$schema", "$defs", "definitions", "$id", "$anchor")  # the result has its own
_REMARKS = ("$comment", "title", "description", "default", "examples", *_NO_MORE)
_TYPING = {"type", "const", "enum", "$ref"}
_COMPOSING = {"$ref", "allOf", *_CHOICES}
_COMPOSED = {*_COMPOSING, *_VALUES, *_NAMED_VALUES}


def closed_objects(schema: Any) -> Any:
    """The schema with its objects closed.

    GrammarError if it is nested too deeply, or if its parts combine in too many ways.
    """
    if isinstance(schema, Mapping) and "properties" in schema and not schema.keys() & _TYPING:
        schema = {"type": "object", **schema}
    try:
        return _Closing(schema).result()
    except RecursionError:
        raise GrammarError("the schema is nested too deeply") from None


@dataclass(frozen=True, slots=True)
class _Keys:
    """What is said about the keys of one object."""

    names: Mapping[str, None] = field(default_factory=dict)  # in their order
    patterns: Mapping[str, None] = field(default_factory=dict)
    needed: Mapping[str, None] = field(default_factory=dict)
    named: bool = False  # whether there is a list of named keys, even an empty one
    whole: bool = False  # whether whole values are given
    others: bool = False  # whether something is said about other keys
    values: bool = False  # whether something is said about the values of keys or items

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> _Keys:
        """What a schema itself says, without the schemas of which it is composed."""
        return cls(
            dict.fromkeys(_map(schema, "properties")),
            dict.fromkeys(_map(schema, "patternProperties")),
            dict.fromkeys(key for key in _list(schema, "required") if isinstance(key, str)),
            named=any(isinstance(schema.get(keyword), Mapping) for keyword in _NAMED_VALUES),
            whole="const" in schema or "enum" in schema,
            others="additionalProperties" in schema,
            values=any(keyword in schema for keyword in (*_VALUES, *_NAMED_VALUES)),
        )

    @classmethod
    def all(cls, said: Iterable[_Keys]) -> _Keys:
        """Everything that is said in several places."""
        every = list(said)
        return cls(
            {name: None for keys in every for name in keys.names},
            {pattern: None for keys in every for pattern in keys.patterns},
            {name: None for keys in every for name in keys.needed},
            any(keys.named for keys in every),
            any(keys.whole for keys in every),
            any(keys.others for keys in every),
            any(keys.values for keys in every),
        )

    def allowed(self) -> _Keys:
        """The keys that are allowed, and nothing about others."""
        return _Keys(self.names, self.patterns, self.needed)

    def includes(self, more: _Keys) -> bool:
        """Whether nothing would change if ``more`` were said as well."""
        return (
            all(key in self.names or key in self.needed for key in (*more.names, *more.needed))
            and self.patterns.keys() >= more.patterns.keys()
            and self.whole >= more.whole
            and self.others >= more.others
            and not more.values
        )


class _Choice(NamedTuple):
    """Branches of which one holds (or several, of ``anyOf``), and the schemas around them."""

    keyword: str
    branches: Sequence[Any]
    within: tuple[int, ...]


@dataclass(slots=True)
class _Parts:
    """All that is said about one value in one place."""

    schemas: list[Mapping[str, Any]] = field(default_factory=list)  # all of them hold
    made: list[Any] = field(default_factory=list)  # these too; they are rewritten already
    choices: list[_Choice] = field(default_factory=list)
    said: list[_Keys] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)  # the id() of each of ``schemas``


class _Way(NamedTuple):
    """What is said about a value outside of the branches of a choice."""

    schemas: Sequence[Mapping[str, Any]] = ()
    keys: _Keys = _Keys()
    rest: Any = None  # the schema of other keys, if ``unevaluatedProperties`` has one
    choices: Sequence[_Choice] = ()  # the ones still to be made


class _Closing:
    """The rewriting of one schema."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._references = References(root)
        self._names: dict[tuple[int, ...], str] = {}  # of definitions, by what they are made of
        self._definitions: dict[str, Any] = {}
        self._steps = _STEPS + _STEPS_EACH * len(self._references)

    def result(self) -> Any:
        """The whole schema."""
        whole = self._value(self._root)
        if not isinstance(whole, dict):
            return whole
        if isinstance(self._root, Mapping) and "$schema" in self._root:
            whole = {"$schema": self._root["$schema"], **whole}
        return {**whole, "$defs": self._definitions} if self._definitions else whole

    def _step(self, count: int = 1) -> None:
        self._steps -= count
        if self._steps < 0:
            raise GrammarError(
                "its allOf, anyOf and oneOf combine in too many ways; use fewer, or fewer keys"
            )

    # ---- the schema of a value -------------------------------------------------------------

    def _value(self, schema: Any) -> Any:
        """The schema of a value, closed."""
        if not isinstance(schema, Mapping):
            return schema
        if "$ref" in schema and not schema.keys() - {"$ref", *_REMARKS}:
            target = self._references.find(schema)
            return dict(schema) if target is None else self._defined(target)
        if (id(schema),) in self._names or schema.keys() & _COMPOSING:
            return self._defined(schema)  # it may contain itself, or be long
        return self._closed(schema)

    def _defined(self, *schemas: Any) -> Any:
        """A reference to the definition of a value about which all of these are said."""
        if not all(isinstance(schema, Mapping) for schema in schemas):
            return schemas[0] if len(schemas) == 1 else {"allOf": [*map(self._value, schemas)]}
        key = tuple(map(id, schemas))
        if key not in self._names:
            self._names[key] = name = f"closed-{len(self._names) + 1}"
            self._definitions[name] = self._closed(*schemas)
        return {"$ref": f"#/$defs/{self._names[key]}"}

    def _closed(self, *schemas: Mapping[str, Any]) -> Any:
        if len(schemas) == 1 and _says_rest(schemas[0]):
            rest = self._value(schemas[0]["unevaluatedProperties"])
            return self._chosen(self._parts(*schemas, rest_is_known=True), _Way(rest=rest))
        return self._chosen(self._parts(*schemas), _Way())

    # ---- the parts of a schema -------------------------------------------------------------

    def _parts(
        self, *schemas: Any, within: tuple[int, ...] = (), rest_is_known: bool = False
    ) -> _Parts:
        parts = _Parts()
        for schema in schemas:
            self._collect(schema, parts, within, rest_is_known=rest_is_known)
        return parts

    def _collect(
        self,
        schema: Any,
        parts: _Parts,
        within: tuple[int, ...],
        *,
        rest_is_known: bool = False,
    ) -> None:
        if not isinstance(schema, Mapping):
            if schema is not True:
                parts.made.append(schema)
            return
        if id(schema) in within:  # what is part of itself has no end
            parts.made.append(False)
            return
        if _says_rest(schema) and not rest_is_known:  # about the keys that it names itself
            parts.made.append(self._value(schema))
            parts.said.append(_Keys(others=True))
            return
        if id(schema) in parts.seen:
            return
        self._step()
        within = (*within, id(schema))
        parts.seen.add(id(schema))
        parts.schemas.append(schema)
        parts.said.append(_Keys.of(schema))
        if conditional := _conditional(schema):
            parts.said.append(self._all_keys(*conditional).allowed())
        if "$ref" in schema:
            target = self._references.find(schema)
            if target is None:
                parts.made.append({"$ref": schema["$ref"]})
            else:
                self._collect(target, parts, within)
        for part in _list(schema, "allOf"):
            self._collect(part, parts, within)
        for keyword in _CHOICES:
            if branches := _list(schema, keyword):
                parts.choices.append(_Choice(keyword, branches, within))

    def _all_keys(self, *parts: Any) -> _Keys:
        """What is said about the keys anywhere in some parts, whichever branches are chosen."""
        said: list[_Keys] = []
        seen: set[int] = set()
        waiting = [(part, False) for part in reversed(parts)]
        while waiting:
            schema, on_condition = waiting.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            self._step()
            seen.add(id(schema))
            keys = _Keys.of(schema)
            said.append(keys.allowed() if on_condition else keys)
            if _says_rest(schema) and not on_condition:
                said.append(_Keys(others=True))
            inner = [part for keyword in ("allOf", *_CHOICES) for part in _list(schema, keyword)]
            if "$ref" in schema:
                inner.append(self._references.find(schema))
            waiting += [(part, True) for part in _conditional(schema)]
            waiting += [(part, on_condition) for part in reversed(inner)]
        return _Keys.all(said)

    # ---- choices ---------------------------------------------------------------------------

    def _chosen(self, parts: _Parts, way: _Way) -> Any:
        """All of ``parts``, and one branch of each choice, both theirs and those of ``way``."""
        keys = _Keys.all([way.keys, *parts.said])
        self._step(len(keys.names) if way.schemas else 1)
        made, choices = list(parts.made), []
        for choice in (*parts.choices, *way.choices):
            if keys.includes(self._all_keys(*choice.branches)):
                made.append(self._left(choice))
            else:
                choices.append(choice)
        schemas = [*way.schemas, *parts.schemas]
        if not choices:
            end = _end(keys, way.rest)
            return _all_of([*self._all_plain(schemas, once=not way.schemas), *made], end)
        first, *others = choices
        inner = _Way(tuple(schemas), keys, way.rest, tuple(others))
        return _all_of(
            made, {first.keyword: [self._branch(first, b, inner) for b in first.branches]}
        )

    def _branch(self, choice: _Choice, branch: Any, way: _Way) -> Any:
        if way == _Way() and choice.keyword == "anyOf":  # of oneOf the engine must see all
            return self._value(branch)
        return self._chosen(self._parts(branch, within=choice.within), way)

    def _left(self, choice: _Choice) -> Object:
        """A choice that says nothing about keys and values."""
        branches = []
        for branch in choice.branches:
            parts = self._parts(branch, within=choice.within)
            branches.append(self._chosen(parts, _Way(keys=_Keys(others=True))))
        return {choice.keyword: branches}

    # ---- schemas without composition -------------------------------------------------------

    def _all_plain(self, schemas: Sequence[Mapping[str, Any]], *, once: bool) -> list[Object]:
        """Each schema without the schemas of which it is composed, and with closed values.

        The schemas of one value are closed together, in the first of them. Unless they are
        written only ``once``, longer ones become definitions.
        """
        said: dict[tuple[str, ...], list[Any]] = {}  # by the value's place
        for schema in schemas:
            for place, value in _values(schema):
                said.setdefault(place, []).append(value)
        return [self._plain(schema, said, once) for schema in schemas]

    def _plain(
        self, schema: Mapping[str, Any], said: Mapping[tuple[str, ...], list[Any]], once: bool
    ) -> Object:
        def value(given: Any, *place: str) -> Any:
            if not _is_composed(given):
                return self._value(given)
            together = said.get(place, [given])
            if given is not together[0]:
                return True
            return self._value(given) if once and len(together) == 1 else self._defined(*together)

        plain: Object = {}
        for keyword, given in schema.items():
            if keyword in _VALUES:
                listed = isinstance(given, list)
                plain[keyword] = list(map(value, given)) if listed else value(given, keyword)
            elif keyword in _NAMED_VALUES and isinstance(given, Mapping):
                plain[keyword] = {key: value(inner, keyword, key) for key, inner in given.items()}
            elif not (
                keyword in (*_NO_MORE, "$ref")
                or (keyword in ("allOf", *_CHOICES) and _list(schema, keyword))
                or (keyword == "unevaluatedProperties" and isinstance(given, Mapping | bool))
            ):
                plain[keyword] = given
        return plain


def _end(keys: _Keys, rest: Any) -> Object:
    """What closes an object about which everything is known; nothing if it is to be open."""
    if keys.others or (rest is None and (keys.whole or not keys.named)):
        return {}
    patterns = {"patternProperties": dict.fromkeys(keys.patterns, True)} if keys.patterns else {}
    return {
        "properties": dict.fromkeys({**keys.names, **keys.needed}, True),
        **patterns,
        "additionalProperties": False if rest is None else rest,
    }


def _all_of(schemas: Sequence[Any], last: Object) -> Any:
    """All of these; ``last`` closes them or is a choice."""
    if any(schema is False for schema in schemas):
        return False
    some = [schema for schema in schemas if schema not in ({}, True)]
    if not some:
        return last
    first = some[0]
    if len(some) == 1 and isinstance(first, dict):
        if not last:
            return first
        if "$ref" not in first and not first.keys() & last.keys() - {*_NAMED_VALUES}:
            merged = {**first, **last}
            for keyword in first.keys() & last.keys():  # ``last`` only repeats the names
                merged[keyword] = {**last[keyword], **first[keyword]}
            return merged
    return {"allOf": [*some, last] if last else some}


def _says_rest(schema: Mapping[str, Any]) -> bool:
    """Whether ``unevaluatedProperties`` says which keys are allowed besides the named ones."""
    return "additionalProperties" not in schema and isinstance(
        schema.get("unevaluatedProperties"), Mapping | bool
    )


def _is_composed(schema: Any) -> bool:
    """Whether a schema contains schemas."""
    return isinstance(schema, Mapping) and not _COMPOSED.isdisjoint(schema)


def _conditional(schema: Mapping[str, Any]) -> list[Any]:
    """The parts of a schema that hold only on some condition."""
    parts = [schema[keyword] for keyword in _CONDITIONAL if keyword in schema]
    return [*parts, *_map(schema, "dependentSchemas").values()]


def _map(schema: Mapping[str, Any], keyword: str) -> Mapping[str, Any]:
    given = schema.get(keyword)
    return given if isinstance(given, Mapping) else {}


def _values(schema: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The composed schemas of values, each after its place."""
    for keyword in _NAMED_VALUES:
        for key, value in _map(schema, keyword).items():
            if _is_composed(value):
                yield (keyword, key), value
    if _is_composed(schema.get("items")) and "prefixItems" not in schema:
        yield ("items",), schema["items"]


def _list(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    given = schema.get(keyword)
    return given if isinstance(given, list) else []
