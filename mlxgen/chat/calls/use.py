"""What the tools of a turn mean for the grammar and the reading of its answer.

Invariant: a choice that cannot be enforced is refused by name; calls of tools that the model may
not call are never read from its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from ...filters import After, Specification
from ...filters.any_of import AnyOf
from ..dialect import Dialect, UnsupportedError
from .grammar import calls_grammar, is_announced, is_known
from .reader import ToolFormat, ToolReader

Tool: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """The form that the text of an answer must have, and the ``field`` that asked for it.

    ``is_json``: white space before the text means nothing.
    """

    field: str
    spec: Specification
    is_json: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPlan:
    """What it takes to enforce tools and a form.

    - ``reader``: reads calls from the text; None if none are allowed.
    - ``spec`` and ``required``: the constraint of the text after the thinking, the form included,
      and whether that text must come.
    - ``stop``: what ends the text after one call, if nothing else does.
    - ``field``: the field that asked for ``spec``.
    """

    reader: ToolReader | None = None
    spec: Specification | None = None
    required: bool = True
    stop: str | None = None
    field: str = "tools"


def plan_tools(use: ToolUse | None, form: Form | None, dialect: Dialect) -> ToolPlan:
    """Plans; ``UnsupportedError`` if this model's format cannot do it."""
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
    reader = ToolReader(format, callable, most=None if use.many else 1)
    grammar = partial(
        calls_grammar,
        format,
        use.tools,
        dialect.vocabulary,
        names=use.names,
        strict=use.strict,
    )
    if use.mode != "auto":
        _check(is_known(format), format, "tool_choice", f"{use.mode} calls cannot be enforced")
        return ToolPlan(reader=reader, spec=grammar(many=use.many and use.mode == "required"))
    if form is not None:
        if not is_known(format):
            raise UnsupportedError(
                form.field,
                f"cannot be combined with tools in this model's call format ({format.style}); "
                f"set tool_choice to none, or leave out {form.field}",
            )
        either = AnyOf((form.spec, grammar(many=use.many)))
        return ToolPlan(reader=reader, spec=either, field=form.field)
    if use.strict:
        names = [tool["function"]["name"] for tool in use.tools]
        at = f"tools[{min(map(names.index, use.strict))}].function.strict"
        _check(is_announced(format), format, at, "schemas cannot be enforced")
    if len(callable) < len(use.tools):
        reason = "a choice of tools cannot be enforced"
        _check(is_announced(format), format, "tool_choice", reason)
    elif use.many and not use.strict:
        return ToolPlan(reader=reader)
    elif not is_announced(format):
        return ToolPlan(reader=reader, stop=format.end or None)
    rest = grammar(many=use.many, begun=True)
    return ToolPlan(reader=reader, spec=After(format.start, rest), required=False)


def _check(can: bool, format: ToolFormat, at: str, reason: str) -> None:
    if not can:
        raise UnsupportedError(
            at, f"{reason} in this model's call format ({format.style}); use auto"
        )
