"""What a request for an answer means, whichever API it came through.

``plan_turn`` makes a prompt, a specification and a reading of the answer from a ``Turn``.
Invariant: what a plan demands of the text is exactly what its reading expects there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from ..filters import Specification
from ..text import ThinkingMarks
from ..tokens import Token
from .calls.use import Form, HeldCalls, ToolUse, plan_tools
from .dialect import EFFORTS, Dialect, UnsupportedError
from .marks import Marks, Reading
from .template.format import SWITCHES, Chat, ChatFormat, Told
from .template.pictures import is_image
from .thinking import beginning_of, in_answer

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
    - ``raw_thoughts``: the thoughts stay in the text, with their marks.
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


def prompt_of(turn: Turn, dialect: Dialect) -> Told:
    """The tokens of a turn's prompt, and what of the chat is not in it.

    Images that the model does not take are told as a note. In the newest message of the user they
    are asked for, and an ``OptionError``.
    """
    messages, noted = list(turn.chat.messages), list[str]()
    for i, message in enumerate(messages if dialect.images is None else ()):
        content = message.get("content")
        is_newest = message.get("role") == "user" and i == len(messages) - 1
        if is_newest or not isinstance(content, (list, tuple)):
            continue
        if images := [j for j, part in enumerate(content) if is_image(part)]:
            noted += [f"messages[{i}].content[{j}]" for j in images]
            texts = ["[image]" if is_image(part) else part.get("text", "") for part in content]
            messages[i] = {**message, "content": "\n".join(map(str, texts))}
    tools = None if turn.tools is None else turn.tools.tools
    format = ChatFormat.of(dialect.vocabulary, tools=bool(tools))
    template = _variables(turn, dialect, format.variables)
    chat = replace(turn.chat, messages=messages, tools=tools, template=template)
    write = None if dialect.tools is None else dialect.tools.write
    told = format.told(chat, dialect.images, write)
    return Told(told.tokens[-turn.keep if turn.keep else 0 :], (*noted, *told.left_out))


def plan_turn(turn: Turn, dialect: Dialect) -> Plan:
    """Plans; ``OptionError``, ``PromptError`` or ``GrammarError`` if that is impossible."""
    form, chat, use = turn.form, turn.chat, turn.tools
    if form is not None and not chat.continue_final_message:
        form = replace(form, spec=in_answer(form.spec, dialect))
    tools = plan_tools(use, form, dialect)
    ids, ignored = prompt_of(turn, dialect)
    calls = None if tools.reader is None else tools.reader.format.starts
    if tools.spec is not None:
        calls = None if tools.required else calls  # only the mark leads on then
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
"""The tokens of thinking that each effort stands for, in models without grades of thinking."""


def _effort(turn: Turn) -> Effort | None:
    """The effort of a turn. Not to think means the same under every name, whether the template has
    a switch or not."""
    says_no = False in map(turn.chat.template.get, SWITCHES)
    return "none" if turn.effort is None and says_no else turn.effort


def _variables(turn: Turn, dialect: Dialect, known: Set[str]) -> Mapping[str, Any]:
    """The template's variables, with those of its ``known`` ones that come closest to the effort:
    its nearest grade, the higher of two, and whether to think, unless they already say that. A
    switch that the template does not have is a matter of the budget."""
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
    """How many tokens the model may think; None: any number."""
    effort = _effort(turn)
    graded = dialect.grades and effort != "none"
    meant = None if effort is None or graded else _BUDGETS.get(effort)
    if turn.thinking_budget is not None or meant is None:
        return turn.usual_budget if turn.thinking_budget is None else turn.thinking_budget
    return meant if turn.usual_budget is None else min(meant, turn.usual_budget)
