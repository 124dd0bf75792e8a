"""What the tools of a turn mean for the grammar and the reading of its answer.

Invariant: a choice that cannot be enforced is refused, with the name of its field; calls of tools
that the model may not call are never read from its text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias

from ...filters import After, AllOf, AnyOf, Specification
from ..dialect import Dialect, UnsupportedError
from ..marks import Reading
from ..thinking import after_thinking
from .checked import CheckedCalls
from .formats import CallFormat
from .grammar import calls_grammar, notes_of
from .reader import ToolReader

Tool: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Form:
    """The form that the text of an answer must have, and the ``field`` that asked for it.

    ``is_json``: white space before the text means nothing. ``is_free``: any text is allowed, and
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
    - ``mode``: the answer may have calls (``auto``), must have some (``required``), or must be
      exactly one (``named``).
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
    """Everything needed to enforce tools and a form.

    - ``reader``: reads calls from the text; None if none are allowed.
    - ``spec`` and ``required``: the constraint on the text after the thinking, including the form,
      and whether that text must come.
    - ``loose``: tools for which ``spec`` enforces at most the outline of their schemas;
      ``checked``: strict tools for which it enforces a part. The rest is checked.
    - ``stop``: ends the text after one call, if nothing else does.
    - ``field``: the field that asked for ``spec``.
    """

    reader: ToolReader | None = None
    spec: Specification | None = None
    required: bool = True
    loose: frozenset[str] = frozenset()
    checked: frozenset[str] = frozenset()
    stop: str | None = None
    field: str = "tools"

    def whole_spec(self, reading: Reading, dialect: Dialect) -> Specification | None:
        """The specification of the whole text, including the thinking and the check of calls."""
        spec, names = self.spec, self.loose | self.checked
        if spec is not None:
            spec = after_thinking(spec, reading.thinking, dialect, required=self.required)
        if self.reader is None or not names:
            return spec
        schemas = {name: schema for name, schema in self.reader.schemas.items() if name in names}
        check = CheckedCalls(reading, schemas, self.reader.strict)
        return check if spec is None else AllOf(spec, check)


@dataclass(frozen=True, slots=True)
class HeldCalls:
    """The calls that a specification holds to schemas, as far as it can; ``loose``: tools for which
    it enforces at most the outline, while the rest is checked."""

    use: ToolUse
    form: Form | None
    dialect: Dialect
    reading: Reading
    loose: frozenset[str]

    def spec_of(self, loose: Set[str]) -> Specification | None:
        """The specification if these tools are loose."""
        plan = plan_tools(self.use, self.form, self.dialect, loose)
        return plan.whole_spec(self.reading, self.dialect)

    def alone(self, name: str) -> Specification | None:
        """The specification of a call of this one tool."""
        return plan_tools(replace(self.use, mode="named", names=(name,)), None, self.dialect).spec

    @property
    def left_out(self) -> list[str]:
        """The parts of strict tools' schemas that are not enforced, each after its tool's name."""
        functions = [tool["function"] for tool in self.use.tools]
        return [
            f"{function['name']}:{note}"
            for function in functions
            if function["name"] in self.use.strict
            for note in notes_of(function.get("parameters") or {})
        ]


def plan_tools(
    use: ToolUse | None, form: Form | None, dialect: Dialect, loose: Set[str] = frozenset()
) -> ToolPlan:
    """Plan tools and a form. ``UnsupportedError`` if this model's format cannot do it.

    The grammar enforces only the outline of the schemas of ``loose`` tools.
    """
    format = dialect.tools
    if use is not None and format is None and use.mode != "auto":
        raise UnsupportedError(
            "tool_choice",
            "the calls of this model cannot be read, so that none can be required; use auto",
        )
    if use is None or format is None:  # the model is only shown the tools
        return ToolPlan() if form is None else ToolPlan(spec=form.spec, field=form.field)
    called = frozenset(use.names)
    callable = [tool for tool in use.tools if tool["function"]["name"] in called]
    most = None if use.many else 1
    reader = ToolReader(format, callable, most=most, strict=use.strict)
    grammar = partial(
        calls_grammar,
        *(format, use.tools, dialect.vocabulary),
        names=use.names,
        strict=use.strict,
        loose=loose,
    )
    spec: Specification
    if use.mode != "auto":
        _check(format.enforced, format, "tool_choice", f"{use.mode} calls cannot be enforced")
        held = grammar(many=use.many and use.mode == "required")
        spec = held.spec
    elif form is not None:
        if not format.enforced:
            raise UnsupportedError(
                form.field,
                f"cannot be combined with tools in this model's call format ({format.style}); "
                f"set tool_choice to none, or leave out {form.field}",
            )
        held = grammar(many=use.many)
        spec = AnyOf((form.spec, held.spec))
    else:
        if len(callable) < len(use.tools):
            reason = "a choice of tools cannot be enforced"
            _check(format.announced, format, "tool_choice", reason)
        elif use.many and not use.strict:
            return ToolPlan(reader=reader)
        elif not format.announced:
            stop = None if use.many else format.end or None
            return ToolPlan(reader=reader, stop=stop, loose=use.strict & called)
        held = grammar(many=use.many, begun=True)
        spec = After(format.start, held.spec)
    return ToolPlan(
        reader=reader,
        spec=spec,
        required=use.mode != "auto" or form is not None,
        loose=held.loose,
        checked=held.checked,
        field="tools" if form is None or use.mode != "auto" else form.field,
    )


def _check(can: bool, format: CallFormat, at: str, reason: str) -> None:
    if not can:
        raise UnsupportedError(
            at, f"{reason} in this model's call format ({format.style}); use auto"
        )
