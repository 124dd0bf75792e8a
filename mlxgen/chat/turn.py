"""What a request for an answer means, whichever API it came through.

``plan_turn`` turns a ``Turn`` into a prompt, a specification and a reading of the answer.
Invariant: a plan constrains the text to exactly what its reading expects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..errors import OptionError
from ..filters import Specification
from ..images import ImageProcessor
from ..text import ThinkingMarks
from ..tokens import Token
from .calls.use import Form, HeldCalls, ToolUse, plan_tools
from .dialect import EFFORTS, Dialect, UnsupportedError
from .marks import Marks, Reading
from .template.format import SWITCHES, Chat, ChatFormat, Told
from .template.pictures import is_image, is_taken
from .thinking import beginning_of, in_answer

Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A chat, and what it asks of the answer.

    - ``chat``: the messages, without tools.
    - ``tools``, ``form``: the tools that the answer may call, and the form that its text must have.
    - ``effort``: how long to think; None leaves it to the model, which may have no such setting.
    - ``thinking_budget``: the most tokens of thinking; None: what the effort implies, but no more
      than ``usual_budget``.
    - ``keep``: keep at most this many of the prompt's last tokens; None: all.
    - ``raw_thoughts``: leave the thinking in the text, with its marks.
    """

    chat: Chat
    tools: ToolUse | None = None
    form: Form | None = None
    effort: Effort | None = None
    thinking_budget: int | None = None
    usual_budget: int | None = None
    keep: int | None = None
    raw_thoughts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything needed to answer a turn.

    - ``ids``: the prompt; ``opens_text``: whether the text begins a message, or continues one.
    - ``thinking``: the marks of the thinking that may come; ``thinking_budget``: its most tokens.
    - ``field``: the field that asked for ``spec``; ``held``: the calls that it holds to schemas.
    - ``stop``: a string that ends the text, besides the stops of the request.
    - ``ignored``: the places of the chat that the prompt leaves out, and whichever of ``tools``,
      ``reasoning_effort`` and ``thinking_budget`` have no effect on this model.
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


def prompt_of(turn: Turn, dialect: Dialect) -> Told:
    """The tokens of a turn's prompt, and the places of the chat that it leaves out.

    A note replaces each image that the model does not take; only an image in the newest message,
    if that is the user's, raises ``OptionError``.
    """
    tools = None if turn.tools is None else turn.tools.tools
    format = ChatFormat.of(dialect.vocabulary, tools=bool(tools))
    template = _variables(turn, dialect, format.variables)
    chat, noted = replace(turn.chat, tools=tools, template=template), list[str]()
    write = None if dialect.tools is None else dialect.tools.write
    try:
        told = format.told(chat, dialect.images, write)
    except OptionError:
        messages, noted = _noted(chat.messages, dialect.images)
        if not noted:
            raise
        told = format.told(replace(chat, messages=messages), dialect.images, write)
    return Told(told.tokens[-turn.keep if turn.keep else 0 :], (*noted, *told.left_out))


def _noted(
    messages: Sequence[Mapping[str, Any]], images: ImageProcessor | None
) -> tuple[list[Mapping[str, Any]], list[str]]:
    """The messages with notes for images, except those of the user's newest message, and the places
    of these images."""
    told, noted = list(messages), list[str]()
    for i, message in enumerate(messages):
        content = message.get("content")
        is_newest = message.get("role") == "user" and i == len(messages) - 1
        if is_newest or not isinstance(content, (list, tuple)):
            continue
        lost = [
            j for j, part in enumerate(content) if is_image(part) and not is_taken(part, images)
        ]
        if lost:
            noted += [f"messages[{i}].content[{j}]" for j in lost]
            note = {"type": "text", "text": "[image]"}
            parts = [note if j in lost else part for j, part in enumerate(content)]
            text = "\n".join(str(part.get("text", "")) for part in parts)
            told[i] = {**message, "content": parts if any(map(is_image, parts)) else text}
    return told, noted


def plan_turn(turn: Turn, dialect: Dialect) -> Plan:
    """Plan an answer. Raises ``OptionError``, ``PromptError`` or ``GrammarError`` if that fails."""
    form, chat, use = turn.form, turn.chat, turn.tools
    if form is not None and not chat.continue_final_message:
        form = replace(form, spec=in_answer(form.spec, dialect))
    tools = plan_tools(use, form, dialect)
    ids, ignored = prompt_of(turn, dialect)
    calls = None if tools.reader is None else tools.reader.format.starts
    if tools.spec is not None:
        calls = None if tools.required else calls  # then only its end mark ends the thinking
        if not dialect.takes_forms:
            raise UnsupportedError(
                tools.field,
                "this model writes headers before its text and cannot be held to a form; leave "
                "it out",
            )
    begun = chat.messages[-1] if chat.continue_final_message else None
    beginning = beginning_of(ids, dialect, begun, calls)
    dialect = replace(dialect, marks=beginning.marks)
    reading = Reading(
        marks=Marks() if turn.raw_thoughts else dialect.marks,
        thinking="closed" if turn.raw_thoughts else beginning.thinking,
        tools=tools.reader,
        trim=form is None or form.is_json or form.is_free,
        exact=form is not None and not form.is_free,
    )
    thinks = dialect.marks.think_start is not None or "reasoning" in dialect.marks.transitions
    if use is not None and dialect.tools is None and not dialect.shows_tools:
        ignored += ("tools",)
    if not (turn.effort in (None, "none") or dialect.grades or thinks):
        ignored += ("reasoning_effort",)
    if turn.thinking_budget is not None and not thinks:
        ignored += ("thinking_budget",)
    held = None
    if use is not None and tools.reader is not None and (tools.spec is not None or tools.loose):
        held = HeldCalls(use, form, dialect, reading, tools.loose)
    return Plan(
        ids=tuple(ids),
        opens_text=not chat.continue_final_message,
        reading=reading,
        thinking=beginning.limits,
        thinking_budget=None if beginning.limits is None else _budget(turn, dialect),
        spec=tools.whole_spec(reading, dialect),
        stop=tools.stop,
        field=tools.field,
        held=held,
        ignored=tuple(dict.fromkeys(ignored)),
    )


# ---- how long to think ---------------------------------------------------------------------------

_BUDGETS = {"none": 0, "minimal": 512, "low": 1024, "medium": 8192, "high": 24_576}
"""Tokens of thinking for each effort, in models whose template has no grades of thinking."""


def _effort(turn: Turn) -> Effort | None:
    """The effort of a turn: ``none`` also if a template variable switches thinking off, under any
    of its names, even if the template has no switch."""
    says_no = False in map(turn.chat.template.get, SWITCHES)
    return "none" if turn.effort is None and says_no else turn.effort


def _variables(turn: Turn, dialect: Dialect, known: Set[str]) -> Mapping[str, Any]:
    """The turn's template variables, and those ``known`` to the template that express the effort:
    the nearest grade (of two, the higher) and the switch of thinking, unless the turn sets them. A
    switch that the template lacks is dropped: the budget does its work."""
    given, effort = dict(turn.chat.template), _effort(turn)
    nearest: dict[str, Any] = {}
    if effort is not None:
        nearest |= dialect.off if effort == "none" else dialect.on
        if dialect.grades and not (effort == "none" and nearest and "none" not in dialect.grades):
            wanted = EFFORTS.index(effort)
            grades = sorted(dialect.grades, key=EFFORTS.index, reverse=True)
            grade = min(grades, key=lambda grade: abs(EFFORTS.index(grade) - wanted))
            nearest["reasoning_effort"] = grade
    for name in SWITCHES:
        if isinstance(given.get(name), bool):
            for other in SWITCHES:
                nearest.pop(other, None)
            if known.isdisjoint(SWITCHES):
                del given[name]
    for name in nearest.keys() & known:
        given.setdefault(name, nearest[name])
    return given


def _budget(turn: Turn, dialect: Dialect) -> int | None:
    """The most tokens of thinking; None: any number."""
    effort = _effort(turn)
    graded = dialect.grades and effort != "none"
    meant = None if effort is None or graded else _BUDGETS.get(effort)
    if turn.thinking_budget is not None or meant is None:
        return turn.usual_budget if turn.thinking_budget is None else turn.thinking_budget
    return meant if turn.usual_budget is None else min(meant, turn.usual_budget)
