"""How a model writes in a chat: what marks thinking and tool calls in its text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import MlxgenError, OptionError, PromptError
from ..images import ImageProcessor
from ..tokens import Token, Vocabulary
from .calls.formats import CallFormat
from .families import marks_of
from .splitter import Marks
from .template.format import SWITCHES, Chat, ChatFormat


class UnsupportedError(OptionError):
    """A request needs something that the chat format of this model does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What is known of a model's text, from mlx-lm, the chat template and the tokens. Any thread
    may read it.

    - ``marks`` and ``tools``: the model's format; ``think_start_tokens`` spell the mark that
      starts thinking.
    - ``grades_thinking`` and ``switches_thinking``: whether the chat template uses
      ``reasoning_effort`` and ``enable_thinking``.
    - ``shows_tools`` and ``shows_calls``: whether it shows tools and earlier calls to the model.
    - ``images``: what reads the images in its messages, if it takes any.
    """

    vocabulary: Vocabulary
    marks: Marks = field(default_factory=Marks)
    think_start_tokens: tuple[Token, ...] = ()
    tools: CallFormat | None = None
    grades_thinking: bool = False
    switches_thinking: bool = False
    shows_tools: bool = False
    shows_calls: bool = True
    images: ImageProcessor | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary, images: ImageProcessor | None = None) -> Dialect:
        """The dialect of a tokenizer's model; ``images`` reads those that it takes."""
        tokenizer: Any = vocabulary.tokenizer
        variables = _variables(vocabulary)
        template, added = _template(tokenizer), _added(vocabulary)
        marks = marks_of(tokenizer, template, added)
        start = tokenizer.think_start_tokens
        if start is None and marks.think_start is not None:
            start = tokenizer.encode(marks.think_start, add_special_tokens=False)
        return cls(
            vocabulary=vocabulary,
            marks=marks,
            think_start_tokens=tuple(map(int, start or ())),
            tools=CallFormat.of(tokenizer, template, added),
            grades_thinking="reasoning_effort" in variables,
            switches_thinking=not variables.isdisjoint(SWITCHES),
            shows_tools=_shows(vocabulary, "tools"),
            shows_calls=_shows(vocabulary, "calls"),
            images=images,
        )

    @property
    def thinks(self) -> bool:
        """Whether the model has marks for thinking."""
        return self.marks.think_start is not None or "reasoning" in self.marks.transitions

    def nearest(self, effort: str | None) -> Mapping[str, Any]:
        """The variables of the template that come closest to an effort: without grades, only
        whether to think. None leaves it to the model."""
        if effort is None:
            return {}
        if self.grades_thinking:
            return {"reasoning_effort": effort}
        return {"enable_thinking": effort != "none"} if self.switches_thinking else {}

    def follows(self, effort: str | None) -> bool:
        """Whether an effort makes the difference that it asks for, or asks for none."""
        return effort in (None, "none") or self.grades_thinking or self.thinks

    @property
    def takes_forms(self) -> bool:
        """Whether the text can be held to a form: not if it has headers of which it is not known
        which one comes before the answer."""
        return self.marks.initial is None or bool(self.marks.answer)


def ending_turns(vocabulary: Vocabulary) -> Vocabulary:
    """The vocabulary whose end tokens include the one with which the chat template ends a turn; the
    tokenizer gets it, too, so that mlx-lm ends there as well."""
    end = turn_end(vocabulary)
    if end is None:
        return vocabulary
    vocabulary.tokenizer.eos_token_ids = {*vocabulary.eos, end}
    return Vocabulary.of(vocabulary.tokenizer)


def turn_end(vocabulary: Vocabulary) -> Token | None:
    """The token with which the chat template ends an answer, if no end token of the tokenizer does.

    Configurations of fine-tunes forget it, and the model would go on with the other side's part.
    ``None`` if an end token stands there, if there is no template or no such mark, and for formats
    of several messages an answer, whose marks end only one of these.
    """
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    try:
        begun = Chat(said, continue_final_message=True).tokens(vocabulary)
        whole = Chat(said, add_generation_prompt=False).tokens(vocabulary)
    except MlxgenError:
        return None
    rest = whole[len(begun) :]
    marks = [token for token in rest if token in vocabulary.special]
    if whole[: len(begun)] != begun or not marks or not vocabulary.eos.isdisjoint(rest):
        return None
    before = vocabulary.decode(rest[: rest.index(marks[0])])
    return None if before.strip() or Dialect.of(vocabulary).marks.initial else marks[0]


def _template(tokenizer: Any) -> str:
    """The text of the chat templates; "" if there is only a program."""
    template = tokenizer.chat_template
    texts = template.values() if isinstance(template, Mapping) else (template,)
    return "\0".join(text for text in texts if isinstance(text, str))


def _added(vocabulary: Vocabulary) -> frozenset[str]:
    return frozenset(vocabulary.piece(token).decode(errors="replace") for token in vocabulary.added)


def _variables(vocabulary: Vocabulary) -> frozenset[str]:
    """The variables of the chat template; none if it cannot be used."""
    try:
        return ChatFormat.of(vocabulary).variables
    except PromptError:
        return frozenset()


def _shows(vocabulary: Vocabulary, what: Literal["tools", "calls"]) -> bool:
    """Whether the chat template mentions them; not if it cannot be used."""
    try:
        format = ChatFormat.of(vocabulary, tools=True)
    except PromptError:
        return False
    return format.shows_tools if what == "tools" else format.shows_calls
