"""What a request for an answer means, whichever API it came through.

``plan_turn`` makes a prompt, a specification and a reading of the answer from a ``Turn``.
Invariant: what a plan demands of the text is exactly what its reading expects there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..filters import Specification
from ..text import ThinkingMarks
from ..tokens import Token
from .calls.held import HeldCalls
from .calls.use import Form, ToolPlan, ToolUse, plan_tools
from .dialect import Dialect, UnsupportedError
from .roles import retold, without_calls
from .splitter import Reading, Thinking
from .template.format import SWITCHES, Chat, RefusedError
from .template.sandbox import RenderLimits
from .thinking import after_thinking, budget_of, going_on, in_answer, marks_of, thinking_of

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a chat asks of an answer.

    - ``chat``: the messages, without tools.
    - ``tools``, ``form``: what the answer may call, and the form that its text must have.
    - ``effort``: how long to think; None leaves it to the model, which may know no such thing.
    - ``thinking_budget``: how many tokens to think, at most; None: what the effort means, but no
      more than ``usual_budget``.
    - ``keep``: how many of the prompt's last tokens to keep, at most; None: all.
    """

    chat: Chat
    tools: ToolUse | None = None
    form: Form | None = None
    effort: Effort | None = None
    thinking_budget: int | None = None
    usual_budget: int | None = None
    keep: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What it takes to answer a turn.

    - ``ids``: the prompt; ``opens_text``: the text is a new one, not the rest of a message.
    - ``thinking``: the marks of the thinking that may come; ``thinking_budget``: its most tokens.
    - ``field``: the field that asked for ``spec``; ``held``: the calls that it holds to schemas.
    - ``stop``: what ends the text, besides the stops of the request.
    - ``ignored``: what had no effect on this model, of ``tools``, ``reasoning_effort`` and
      ``thinking_budget``.
    """

    ids: tuple[Token, ...]
    opens_text: bool
    reading: Reading
    thinking: ThinkingMarks | None = None
    thinking_budget: int | None = None
    spec: Specification | None = None
    stop: str | None = None
    field: str = "filters"
    held: HeldCalls | None = None
    ignored: tuple[str, ...] = ()


def plan_turn(turn: Turn, dialect: Dialect, limits: RenderLimits | None = None) -> Plan:
    """Plans; ``OptionError``, ``PromptError`` or ``GrammarError`` if that is impossible."""
    form = turn.form
    if form is not None and not turn.chat.continue_final_message:
        form = replace(form, spec=in_answer(form.spec, dialect))
    tools = plan_tools(turn.tools, form, dialect)
    chat = replace(
        turn.chat,
        tools=None if turn.tools is None else turn.tools.tools,
        template=_variables(turn, dialect),
    )
    ids = _rendered(chat, dialect, limits)[-turn.keep if turn.keep else 0 :]
    continued = str(chat.messages[-1]["content"]) if chat.continue_final_message else None
    thinking = thinking_of(ids, dialect, continued)
    if continued is not None:
        dialect = replace(dialect, marks=going_on(dialect.marks, chat.messages[-1]))
    spec = tools.spec
    calls = None if tools.reader is None else tools.reader.format.starts
    if spec is not None:
        calls = None if tools.required else calls  # only the mark leads on then
        if not dialect.takes_forms:
            raise UnsupportedError(
                tools.field,
                "this model writes headers before its text and cannot be held to a form; leave "
                "it out",
            )
        spec = _after(tools, thinking, dialect)
    marks = marks_of(thinking, dialect, calls)
    reading = Reading(
        marks=dialect.marks,
        thinking=thinking,
        tools=tools.reader,
        trim=turn.form is None or turn.form.is_json,
        exact=turn.form is not None,
    )
    return Plan(
        ids=tuple(ids),
        opens_text=not chat.continue_final_message,
        reading=reading,
        thinking=marks,
        thinking_budget=None if marks is None else _budget(turn, dialect),
        spec=spec,
        stop=tools.stop,
        field=tools.field,
        held=_held(turn.tools, form, dialect, tools, reading),
        ignored=_ignored(turn, dialect),
    )


def _after(tools: ToolPlan, thinking: Thinking, dialect: Dialect) -> Specification | None:
    """The specification of the whole text, the thinking included."""
    if tools.spec is None:
        return None
    return after_thinking(tools.spec, thinking, dialect, required=tools.required)


def _held(
    use: ToolUse | None,
    form: Form | None,
    dialect: Dialect,
    tools: ToolPlan,
    reading: Reading,
) -> HeldCalls | None:
    if use is None or tools.reader is None or (tools.spec is None and not tools.loose):
        return None

    def spec_of(loose: Set[str]) -> Specification | None:
        return _after(plan_tools(use, form, dialect, loose), reading.thinking, dialect)

    def alone(name: str) -> Specification | None:
        return plan_tools(replace(use, mode="named", names=(name,)), None, dialect).spec

    return HeldCalls(use, reading, tools.loose, spec_of, alone)


def _rendered(chat: Chat, dialect: Dialect, limits: RenderLimits | None) -> list[Token]:
    """The tokens of a chat, in other roles if the template refuses those that it has."""
    if not dialect.shows_calls:
        chat = replace(chat, messages=without_calls(chat.messages))
    try:
        return chat.tokens(dialect.vocabulary, limits, dialect.images)
    except RefusedError:
        for messages in retold(chat.messages):
            with contextlib.suppress(RefusedError):
                told = replace(chat, messages=messages)
                return told.tokens(dialect.vocabulary, limits, dialect.images)
        raise


def _variables(turn: Turn, dialect: Dialect) -> Mapping[str, Any]:
    """The template's variables, with the effort among them, unless they already say whether to
    think."""
    given = turn.chat.template
    nearest = dict(dialect.nearest(turn.effort))
    if not given.keys().isdisjoint(SWITCHES):
        nearest.pop("enable_thinking", None)
    return {**nearest, **given}


def _budget(turn: Turn, dialect: Dialect) -> int | None:
    if turn.thinking_budget is not None:
        return turn.thinking_budget
    return budget_of(turn.effort, turn.usual_budget, dialect)


def _ignored(turn: Turn, dialect: Dialect) -> tuple[str, ...]:
    unseen = turn.tools is not None and dialect.tools is None and not dialect.shows_tools
    return (
        *(("tools",) if unseen else ()),
        *(() if dialect.follows(turn.effort) else ("reasoning_effort",)),
        *(() if turn.thinking_budget is None or dialect.thinks else ("thinking_budget",)),
    )
