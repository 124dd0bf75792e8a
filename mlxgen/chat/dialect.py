"""How a model writes in a chat: the marks of thinking and of tool calls in its text."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..errors import MlxgenError, OptionError, PromptError
from ..images import ImageProcessor
from ..tokens import Token, Vocabulary
from .calls.formats import CallFormat
from .marks import Marks, marks_of
from .template.format import SWITCHES, Chat, ChatFormat

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""Levels of thinking, from none to the longest."""
_THOUGHT = "(?:think|thinking|reasoning)"
_SWITCH = re.compile(f"(?:(?:enable|use|do|with|allow)_)?{_THOUGHT}(?:_enabled|_on)?")
_COUNTER_SWITCH = re.compile(f"(?:disable|no|skip|without)_{_THOUGHT}|{_THOUGHT}_(?:disabled|off)")
_MODE = re.compile(f"{_THOUGHT}_mode")
_BUDGET = re.compile(f"(?:max_)?{_THOUGHT}_(?:budget|tokens)")
_ON = ("on", "enabled", "think", "thinking", "auto")
_OFF = ("off", "disabled", "no_think", "nothink", "non-thinking", "chat", "none")


class UnsupportedError(OptionError):
    """A request needs something that this model's chat format does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What mlx-lm, the chat template and the added tokens say about a model's text. Any thread may
    read it.

    - ``marks`` and ``tools``: the model's format; ``think_start_tokens`` spell the mark that
      starts thinking.
    - ``grades``: the values of ``reasoning_effort`` that the chat template knows; empty if it does
      not use the variable. ``on`` and ``off``: the variables that switch thinking on and off.
    - ``shows_tools``: whether the template shows tools to the model.
    - ``images``: reads the images in messages; None if the model takes none.
    """

    vocabulary: Vocabulary
    marks: Marks = field(default_factory=Marks)
    think_start_tokens: tuple[Token, ...] = ()
    tools: CallFormat | None = None
    grades: tuple[str, ...] = ()
    on: Mapping[str, Any] = field(default_factory=dict)
    off: Mapping[str, Any] = field(default_factory=dict)
    shows_tools: bool = False
    images: ImageProcessor | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary, images: ImageProcessor | None = None) -> Dialect:
        """The dialect of a tokenizer's model; ``images`` reads the images that it takes."""
        tokenizer: Any = vocabulary.tokenizer
        variables = words = frozenset[str]()
        shows_tools = False
        with suppress(PromptError):  # there may be no usable template
            format = ChatFormat.of(vocabulary)
            variables, words = format.variables, format.words
        with suppress(PromptError):
            shows_tools = ChatFormat.of(vocabulary, tools=True).shows_tools
        template = tokenizer.chat_template  # None if a program renders chats instead
        texts = template.values() if isinstance(template, Mapping) else (template,)
        template = "\0".join(text for text in texts if isinstance(text, str))
        added = {vocabulary.piece(token).decode(errors="replace") for token in vocabulary.added}
        marks = marks_of(tokenizer, template, added)
        start = tokenizer.think_start_tokens
        if start is None and marks.think_start is not None:
            start = tokenizer.encode(marks.think_start, add_special_tokens=False)
        grades = tuple(effort for effort in EFFORTS if effort in words)
        if len(grades) < 2:  # a template with only a default prints whatever it gets
            grades = ("low", "medium", "high")
        return cls(
            vocabulary=vocabulary,
            marks=marks,
            think_start_tokens=tuple(map(int, start or ())),
            tools=CallFormat.of(tokenizer, template, added),
            grades=grades if "reasoning_effort" in variables else (),
            on=_switched(variables, words, on=True),
            off=_switched(variables, words, on=False),
            shows_tools=shows_tools,
            images=images,
        )

    @property
    def takes_forms(self) -> bool:
        """Whether the text can be constrained to a form: not if the model writes headers and it is
        unknown which of them precedes the answer."""
        return self.marks.initial is None or bool(self.marks.answer)


def ending_turns(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary, with the token that ends a turn in the chat template among its end tokens.
    The tokenizer gets the token as well, so that mlx-lm ends there, too.

    Configurations of fine-tunes forget it, and the model would go on to write the user's turn.
    Nothing changes if the turn already ends with an end token, if there is no template or no such
    token, or if an answer has several messages, where the token ends one of them or begins a call.
    """
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    try:
        begun = Chat(said, continue_final_message=True).tokens(vocabulary)
        whole = Chat(said, add_generation_prompt=False).tokens(vocabulary)
    except MlxgenError:
        return vocabulary
    rest = whole[len(begun) :]
    marks = [token for token in rest if token in vocabulary.special]
    if whole[: len(begun)] != begun or not marks or not vocabulary.eos.isdisjoint(rest):
        return vocabulary
    before = vocabulary.decode(rest[: rest.index(marks[0])])
    dialect, mark = Dialect.of(vocabulary), vocabulary.piece(marks[0]).decode(errors="replace")
    goes_on = dialect.tools is not None and dialect.tools.start.startswith(mark)
    if before.strip() or dialect.marks.initial or goes_on:
        return vocabulary
    vocabulary.tokenizer.eos_token_ids = {*vocabulary.eos, marks[0]}
    return Vocabulary.of(vocabulary.tokenizer)


def _switched(variables: Collection[str], words: Collection[str], *, on: bool) -> dict[str, Any]:
    """The template variables that switch thinking on or off, with the values that do so."""
    switched: dict[str, Any] = {}
    mode = next((word for word in (_ON if on else _OFF) if word in words), None)
    names = [*(name for name in SWITCHES if name in variables), *sorted(variables)]
    if switch := next((name for name in names if _SWITCH.fullmatch(name)), None):
        switched[switch] = on
    for name in names:
        if _COUNTER_SWITCH.fullmatch(name):
            switched[name] = not on
        elif _MODE.fullmatch(name) and mode is not None:
            switched[name] = mode
        elif _BUDGET.fullmatch(name) and not on:
            switched[name] = 0
    return switched
