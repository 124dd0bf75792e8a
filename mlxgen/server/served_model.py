"""What requests need to know of the model.

Owns ``ServedModel``: names, limits, defaults, and the model's dialect. Must never know a request.
Invariant: frozen, and any thread may read it: no field is an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..chat.dialect import Dialect
from ..loading.generation_config import BALANCED, SamplingChoice, sampling_defaults
from ..tokens import Vocabulary
from .registry import Registry
from .settings import Settings

if TYPE_CHECKING:
    from ..language_model import LanguageModel


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model behind the server, as far as requests are concerned.

    - ``name`` is what answers have, unless the request has another one.
    - ``vocab_size`` is the width of the logits, ``max_context`` the most tokens of prompt and
      answer together (``None``: unknown).
    - ``sampling`` are the sampling defaults of requests, from ``sampling_choice``.
    - ``dialect`` is how it writes; ``thinking_budget`` how many tokens it may think if a request
      does not say (``None``: any number).
    - ``registry``: the operator's own programs, controllers and hooks.
    - ``chat_template``, ``bos_token`` and ``eos_token`` are texts, empty if there is none.
    """

    name: str
    dialect: Dialect
    vocab_size: int
    max_context: int | None = None
    sampling: Mapping[str, Any] = field(default_factory=lambda: BALANCED, hash=False)
    sampling_choice: SamplingChoice = "model"
    registry: Registry = field(default_factory=Registry, hash=False)
    thinking_budget: int | None = None
    chat_template: str = ""
    bos_token: str = ""
    eos_token: str = ""

    @classmethod
    def of(
        cls,
        lm: LanguageModel,
        settings: Settings | None = None,
        registry: Registry | None = None,
    ) -> ServedModel:
        """The facts of a loaded model; call this on the thread that runs it."""
        tokenizer: Any = lm.tokenizer
        settings = settings or Settings()
        choice = settings.sampling_defaults
        return cls(
            name=lm.name,
            dialect=Dialect.of(lm.vocabulary, lm.images),
            vocab_size=lm.vocab_size,
            max_context=lm.max_context,
            sampling=sampling_defaults(choice, lm.recommended),
            sampling_choice=choice,
            registry=replace(registry or Registry.of(settings), lm=lm),
            thinking_budget=settings.thinking_budget,
            chat_template=_text(getattr(tokenizer, "chat_template", None)),
            bos_token=_text(tokenizer.bos_token),
            eos_token=_text(tokenizer.eos_token),
        )

    @property
    def vocabulary(self) -> Vocabulary:
        """The tokenizer's facts."""
        return self.dialect.vocabulary


def _text(given: Any) -> str:
    """A text of the tokenizer; of several chat templates the default one."""
    if isinstance(given, Mapping):
        given = given.get("default")
    return given if isinstance(given, str) else ""
