"""A language model that chats as a test says, byte by byte, through a real KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxgen import LanguageModel
from mlxgen.loading.generation_config import GREEDY
from mlxgen.tokens import Token

from .scripted import ScriptedModel
from .tokenizers import CHAT_TEMPLATE, alphabet_tokenizer

THINK, THOUGHT = "<think>", "</think>"
TEMPLATE = CHAT_TEMPLATE.replace("<|im_end|>", "<|end|>")
FORGETFUL = TEMPLATE.replace(
    "message['content'] }}", "message['content'].split('" + THOUGHT + "')[-1] }}"
)
"""The template, without what was thought in earlier answers."""


class Chatter:
    """``lm`` answers each message with ``answers(message)``; ``model`` records what it ran.

    A token is a byte, apart from the marks of thinking.
    """

    def __init__(
        self,
        answers: Callable[[str], str] = str.upper,
        *,
        template: str = TEMPLATE,
        thinks: bool = False,
        make_cache: Callable[[], list[Any]] | None = None,
        **options: Any,
    ) -> None:
        tokenizer = alphabet_tokenizer([THINK, THOUGHT] if thinks else [])
        tokenizer._tokenizer.chat_template = template
        (self._end,) = tokenizer.eos_token_ids
        self._answers = answers
        self._thinks = thinks
        self.model = ScriptedModel(self._end + 1, self._next, make_cache)
        options.setdefault("draft", "off")  # so that tests can count what it ran
        options.setdefault("recommended", GREEDY)
        self.lm = LanguageModel(self.model, tokenizer, name="chatter", **options)
        _ = self.lm.vocab_size  # asked once, so that tests can count passes
        self.model.forget()

    def ran(self) -> int:
        """Tokens that the model has run since the last time."""
        count = sum(len(fed) for fed in self.model.fed)
        self.model.forget()
        return count

    def _next(self, history: tuple[Token, ...]) -> list[Token]:
        turns = self.lm.vocabulary.decode(history).split("<|im_start|>")
        if not turns[-1].startswith("assistant\n"):  # in the middle of a prompt
            return [self._end]
        message = turns[-2].removeprefix("user\n").removesuffix("\n")
        said = turns[-1].removeprefix("assistant\n")
        rest = self._answers(message)[len(said) :]
        if not rest:
            return [self._end]
        for mark in (THINK, THOUGHT):
            if self._thinks and rest.startswith(mark):
                return self.lm.vocabulary.encode(mark)
        return [rest.encode()[0]]
