"""What requests have to know of the model.

Owns ``ServedModel``: names, limits, and what marks thinking and tool calls in the
model's text. Must never know a request. Invariant: frozen, and free of arrays, so that
any thread may read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...chat_format import SWITCHES, ChatFormat
from ...errors import PromptError
from ...tokens import Token, Vocabulary
from .splitter import Marks
from .tools import ToolFormat

if TYPE_CHECKING:
    from ...language_model import LanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model behind the server, as far as requests are concerned.

    - ``name`` is what ``/v1/models`` lists; ``aliases`` are other names that requests may use.
    - ``vocab_size`` is the width of the logits, ``max_context`` the most tokens of prompt and
      answer together (None: unknown).
    - ``temperature`` is that of requests that say nothing.
    - ``marks`` and ``tools`` are what mlx-lm knows of the model's format, and ``grades_thinking``
      and ``switches_thinking`` whether its chat template knows of ``reasoning_effort`` and
      ``enable_thinking``.
    """

    name: str
    vocabulary: Vocabulary
    vocab_size: int
    max_context: int | None = None
    aliases: frozenset[str] = frozenset()
    temperature: float = 1.0
    marks: Marks = field(default_factory=Marks)
    think_start_tokens: tuple[Token, ...] = ()
    tools: ToolFormat | None = None
    grades_thinking: bool = False
    switches_thinking: bool = False

    @classmethod
    def of(
        cls, lm: LanguageModel, *, aliases: Iterable[str] = (), temperature: float = 1.0
    ) -> ServedModel:
        """What there is to know of a loaded model; for the thread that runs it."""
        tokenizer: Any = lm.tokenizer
        variables = _variables(lm.vocabulary)
        return cls(
            name=lm.name,
            vocabulary=lm.vocabulary,
            vocab_size=lm.vocab_size,
            max_context=lm.max_context,
            aliases=frozenset(aliases),
            temperature=temperature,
            marks=Marks(
                think_start=tokenizer.think_start or None,
                think_end=tokenizer.think_end or None,
                markers=tuple(tokenizer.structural_markers),
                transitions=tokenizer.response_transitions,
                initial=tokenizer.response_initial_state,
            ),
            think_start_tokens=tuple(tokenizer.think_start_tokens or ()),
            tools=ToolFormat.of(tokenizer),
            grades_thinking="reasoning_effort" in variables,
            switches_thinking=not variables.isdisjoint(SWITCHES),
        )

    @property
    def thinks(self) -> bool:
        """Whether the model has marks for thinking."""
        return self.marks.think_start is not None


def _variables(vocabulary: Vocabulary) -> frozenset[str]:
    """What the chat template can be told; nothing where it cannot be used."""
    try:
        return ChatFormat.of(vocabulary).variables
    except PromptError:
        return frozenset()
