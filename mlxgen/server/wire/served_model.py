"""What requests have to know of the model.

Owns ``ServedModel``: names, limits, and what marks thinking and tool calls in the
model's text. Must never know a request. Invariant: frozen, and free of arrays, so that
any thread may read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...chat.format import SWITCHES, ChatFormat
from ...errors import PromptError
from ...loading.sampling_defaults import OPENAI, SamplingChoice, sampling_defaults
from ...tokens import Token, Vocabulary
from .errors import RequestError
from .fields import shown
from .splitter import Marks
from .tools import ToolFormat

if TYPE_CHECKING:
    from ...model import LanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model behind the server, as far as requests are concerned.

    - ``name`` is what ``/v1/models`` lists; ``aliases`` are other names that requests may use.
    - ``vocab_size`` is the width of the logits, ``max_context`` the most tokens of prompt and
      answer together (None: unknown).
    - ``sampling`` are the options of requests that say nothing, as ``sampling_choice`` has them.
    - ``marks`` and ``tools`` are what mlx-lm knows of the model's format, and ``grades_thinking``
      and ``switches_thinking`` whether its chat template knows of ``reasoning_effort`` and
      ``enable_thinking``.
    - ``chat_template``, ``bos_token`` and ``eos_token`` are texts, empty where there is none.
    """

    name: str
    vocabulary: Vocabulary
    vocab_size: int
    max_context: int | None = None
    aliases: frozenset[str] = frozenset()
    sampling: Mapping[str, Any] = field(default_factory=lambda: OPENAI, hash=False)
    sampling_choice: SamplingChoice = "model"
    marks: Marks = field(default_factory=Marks)
    think_start_tokens: tuple[Token, ...] = ()
    tools: ToolFormat | None = None
    grades_thinking: bool = False
    switches_thinking: bool = False
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""

    @classmethod
    def of(
        cls,
        lm: LanguageModel,
        *,
        aliases: Iterable[str] = (),
        sampling_choice: SamplingChoice = "model",
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
            sampling=sampling_defaults(sampling_choice, lm.recommended, otherwise=OPENAI),
            sampling_choice=sampling_choice,
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
            chat_template=_text(getattr(tokenizer, "chat_template", None)),
            bos_token=_text(tokenizer.bos_token),
            eos_token=_text(tokenizer.eos_token),
        )

    def check_name(self, name: str | None) -> None:
        """RequestError (404) for the name of a model that is not here; None is this one."""
        if name is None or name == self.name or name in self.aliases:
            return
        raise RequestError(
            f"model: there is no model {shown(name)} here, only {self.name!r}",
            status=404,
            param="model",
            code="model_not_found",
        )

    @property
    def thinks(self) -> bool:
        """Whether the model has marks for thinking."""
        return self.marks.think_start is not None


def _text(given: Any) -> str:
    """A text of the tokenizer; of several chat templates the one that is used by default."""
    if isinstance(given, Mapping):
        given = given.get("default")
    return given if isinstance(given, str) else ""


def _variables(vocabulary: Vocabulary) -> frozenset[str]:
    """What the chat template can be told; nothing where it cannot be used."""
    try:
        return ChatFormat.of(vocabulary).variables
    except PromptError:
        return frozenset()
