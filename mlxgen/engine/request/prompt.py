"""A prompt in any of its forms, as tokens: a string, a list of token ids, or chat messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...chat.dialect import Dialect
from ...chat.template.format import Chat, Messages
from ...chat.thinking import beginning_of
from ...errors import PromptError
from ...images import ImageProcessor
from ...text import ThinkingMarks
from ...tokens import Token, Vocabulary

AnyPrompt: TypeAlias = "str | Sequence[Token] | Messages | Chat | Prompt"


def is_chat(given: Any) -> bool:
    """Whether a prompt is chat messages, to which the chat template applies."""
    if isinstance(given, Chat):
        return True
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], Mapping)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens of a prompt.

    - ``opens_text``: what follows starts a new text (the answer in a chat); otherwise it continues
      the prompt's text, with its leading space.
    - ``thinking``: the marks of the thinking with which an answer may begin; ``None`` if there is
      none, or nothing is known about it, as after raw text.
    - ``is_known``: false only for a ``Session`` without a prompt.
    """

    tokens: tuple[Token, ...]
    opens_text: bool
    thinking: ThinkingMarks | None = None
    is_known: bool = True

    def __post_init__(self) -> None:
        if self.is_known and not self.tokens:
            raise PromptError("the prompt has no tokens; pass at least one")

    @classmethod
    def of(
        cls,
        given: AnyPrompt,
        vocabulary: Vocabulary,
        images: ImageProcessor | None = None,
        *,
        width: int = 0,
    ) -> Prompt:
        """Read a prompt; ``images`` reads the images in its messages.

        ``width`` is that of the model's logits, if known: a model may draw ids beyond its
        tokenizer's, and they may come back in a prompt.

        Raises ``PromptError`` if it is not a prompt, and ``OptionError`` for an image that is
        faulty or that nothing reads.
        """
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return cls(_raw(given, vocabulary), opens_text=False)
        if isinstance(given, Chat):
            return cls._of_chat(given, vocabulary, images)
        if isinstance(given, (bytes, Mapping)) or not hasattr(given, "__iter__"):
            raise PromptError(
                "expected a string, a list of token ids or a list of chat messages as prompt, got "
                f"{type(given).__name__}"
            )
        items = list(given)
        if not items:
            raise PromptError("the prompt is empty; pass at least one token or message")
        messages = [item for item in items if isinstance(item, Mapping)]
        if len(messages) == len(items):
            return cls._of_chat(Chat(messages), vocabulary, images)
        return cls(_ids(items, max(vocabulary.size, width)), opens_text=False)

    @classmethod
    def _of_chat(cls, chat: Chat, vocabulary: Vocabulary, images: ImageProcessor | None) -> Prompt:
        tokens = tuple(chat.tokens(vocabulary, images=images))
        begun = chat.messages[-1] if chat.continue_final_message else None
        marks = _marks(tokens, vocabulary, begun, tools=bool(chat.tools))
        return cls(tokens, begun is None, marks)

    def marks(self, vocabulary: Vocabulary) -> ThinkingMarks | None:
        """``thinking``, or if that is not known, the marks that the tokens imply."""
        return self.thinking or _marks(self.tokens, vocabulary, None, tools=False)


def _marks(
    tokens: Sequence[Token], vocabulary: Vocabulary, begun: Mapping[str, Any] | None, *, tools: bool
) -> ThinkingMarks | None:
    """The marks after a prompt; ``begun`` is the message that it leaves open, if any."""
    dialect = Dialect.of(vocabulary)
    calls = dialect.tools.starts if tools and dialect.tools is not None else None
    return beginning_of(tokens, dialect, begun, calls).limits


def _raw(text: str, vocabulary: Vocabulary) -> tuple[Token, ...]:
    if not text:
        raise PromptError("the prompt is empty; pass some text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise PromptError(
            f"the prompt has a lone surrogate at index {error.start}, which is not a character; "
            "remove it"
        ) from error
    tokens = tuple(vocabulary.encode(text))
    if not tokens:
        raise PromptError("the tokenizer makes no tokens of this prompt; pass other text")
    return tokens


def _ids(items: Sequence[Any], size: int) -> tuple[Token, ...]:
    if all(isinstance(item, str) for item in items):
        raise PromptError(
            "expected one prompt, got a list of strings; for several prompts, use lm.batch(prompts)"
        )
    for i, item in enumerate(items):
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise PromptError(
                f"prompt[{i}]: expected a list of token ids or of chat messages, not mixed, got "
                f"{item!r}"
            )
        if not 0 <= item.__index__() < size:
            raise PromptError(f"prompt[{i}]: expected token ids from 0 to {size - 1}, got {item}")
    return tuple(int(item.__index__()) for item in items)
