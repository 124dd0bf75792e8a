"""What the tools of a turn mean for the grammar and the reading of its answer.

Invariant: a choice that cannot be enforced is refused by name; calls of tools that the model may
not call are never read from its text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from ...errors import GrammarError
from ...filters import After, Specification
from ...filters.any_of import AnyOf
from ..dialect import Dialect, UnsupportedError
from .formats import CallFormat
from .grammar import calls_grammar, unheld
from .reader import ToolReader
from .schema import outline

Tool: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """The form that the text of an answer must have, and the ``field`` that asked for it.

    ``is_json``: white space before the text means nothing. ``is_free``: it is any text, which is
    only checked.
    """

    field: str
    spec: Specification
    is_json: bool = False
    is_free: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """Tools, and which of them may be called.

    - ``tools``: as chat templates and parsers take them.
    - ``mode``: calls may come (``auto``), must come (``required``), exactly one must (``named``).
    - ``names``: the tools that may be called.
    - ``strict``: those whose arguments must follow the schema to the letter.
    - ``many``: whether an answer may have several calls.
    """

    tools: tuple[Tool, ...]
    mode: Literal["auto", "required", "named"]
    names: Sequence[str]
    strict: frozenset[str] = frozenset()
    many: bool = True

    @property
    def schemas(self) -> Mapping[str, Any]:
        """The schemas of the arguments of all tools, by their names."""
        functions = [tool["function"] for tool in self.tools]
        return {each["name"]: each.get("parameters") or {} for each in functions}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """What it takes to enforce tools and a form.

    - ``reader``: reads calls from the text; None if none are allowed.
    - ``spec`` and ``required``: the constraint of the text after the thinking, the form included,
      and whether that text must come.
    - ``loose``: the tools whose arguments must follow a schema that ``spec`` does not hold, but for
      its outline; ``checked``: those of which it holds a part, however large.
    - ``stop``: what ends the text after one call, if nothing else does.
    - ``field``: the field that asked for ``spec``.
    """

    reader: ToolReader | None = None
    spec: Specification | None = None
    required: bool = True
    loose: frozenset[str] = frozenset()
    checked: frozenset[str] = frozenset()
    stop: str | None = None
    field: str = "tools"


def plan_tools(
    use: ToolUse | None, form: Form | None, dialect: Dialect, loose: Set[str] = frozenset()
) -> ToolPlan:
    """Plans; ``UnsupportedError`` if this model's format cannot do it.

    Of the schemas of ``loose`` tools, only the outline is to be held.
    """
    format = dialect.tools
    if use is not None and format is None and use.mode != "auto":
        raise UnsupportedError(
            "tool_choice",
            "the calls of this model cannot be read, so that none can be required; use auto",
        )
    if use is None or format is None:  # tools are only shown to the model
        return ToolPlan() if form is None else ToolPlan(spec=form.spec, field=form.field)
    called = frozenset(use.names)
    callable = [tool for tool in use.tools if tool["function"]["name"] in called]
    most = None if use.many else 1
    reader = ToolReader(format, callable, most=most, strict=use.strict)
    if use.mode != "auto":
        _check(format.enforced, format, "tool_choice", f"{use.mode} calls cannot be enforced")
        many = use.many and use.mode == "required"
        spec, loose = _grammar(use, dialect, loose, many=many)
        checked = _checked(use, format, loose)
        return ToolPlan(reader=reader, spec=spec, loose=loose, checked=checked)
    if form is not None:
        if not format.enforced:
            raise UnsupportedError(
                form.field,
                f"cannot be combined with tools in this model's call format ({format.style}); "
                f"set tool_choice to none, or leave out {form.field}",
            )
        spec, loose = _grammar(use, dialect, loose, many=use.many)
        either = AnyOf((form.spec, spec))
        return ToolPlan(
            reader=reader,
            spec=either,
            loose=loose,
            checked=_checked(use, format, loose),
            field=form.field,
        )
    if len(callable) < len(use.tools):
        reason = "a choice of tools cannot be enforced"
        _check(format.announced, format, "tool_choice", reason)
    elif use.many and not use.strict:
        return ToolPlan(reader=reader)
    elif not format.announced:
        stop = None if use.many else format.end or None
        return ToolPlan(reader=reader, stop=stop, loose=use.strict & called)
    rest, loose = _grammar(use, dialect, loose, many=use.many, begun=True)
    spec = After(format.start, rest)
    checked = _checked(use, format, loose)
    return ToolPlan(reader=reader, spec=spec, required=False, loose=loose, checked=checked)


def _grammar(
    use: ToolUse, dialect: Dialect, loose: Set[str], *, many: bool, begun: bool = False
) -> tuple[Specification, frozenset[str]]:
    """The grammar of calls, and the tools of whose schemas it holds the outline alone: the loose
    ones, and those of which no grammar can be made."""
    make = partial(_calls_grammar, use, dialect, many=many, begun=begun)
    try:
        return make(use.names, loose), frozenset(loose)
    except (GrammarError, UnsupportedError):
        loose = loose | {name for name in use.names if name not in loose and _fails(make, name)}
        return make(use.names, loose), frozenset(loose)


def _checked(use: ToolUse, format: CallFormat, loose: Set[str]) -> frozenset[str]:
    """The strict tools whose schemas the grammar does not hold as a whole."""
    held = use.strict.intersection(use.names) - loose
    return frozenset(name for name in held if unheld(format, use.schemas[name]))


def _fails(make: Callable[[Sequence[str], Set[str]], Specification], name: str) -> bool:
    try:
        make([name], frozenset())
    except (GrammarError, UnsupportedError):
        return True
    return False


def _calls_grammar(
    use: ToolUse,
    dialect: Dialect,
    names: Sequence[str],
    loose: Set[str],
    *,
    many: bool,
    begun: bool,
) -> Specification:
    assert dialect.tools is not None
    return calls_grammar(
        dialect.tools,
        [_outlined(tool) if tool["function"]["name"] in loose else tool for tool in use.tools],
        dialect.vocabulary,
        names=names,
        strict=use.strict - loose,
        many=many,
        begun=begun,
    )


def _outlined(tool: Tool) -> Tool:
    function = tool["function"]
    return {**tool, "function": {**function, "parameters": outline(function["parameters"])}}


def _check(can: bool, format: CallFormat, at: str, reason: str) -> None:
    if not can:
        raise UnsupportedError(
            at, f"{reason} in this model's call format ({format.style}); use auto"
        )
