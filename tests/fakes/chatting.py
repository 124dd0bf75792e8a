"""A language model that chats as a test says, byte by byte, through a real KV cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlxgen.tokens import Token

from .speaking import Speaker
from .tokenizers import CHAT_TEMPLATE

THINK, THOUGHT = "<think>", "</think>"
TEMPLATE = CHAT_TEMPLATE.replace("<|im_end|>", "<|end|>")
FORGETFUL = TEMPLATE.replace(
    "message['content'] }}", "message['content'].split('" + THOUGHT + "')[-1] }}"
)
"""The template, without what was thought in earlier answers."""


class Chatter(Speaker):
    """``lm`` answers each message with ``answers(message)``; ``model`` records what it ran.

    A token is a byte, apart from the marks of thinking.
    """

    def __init__(
        self,
        answers: Callable[[str], str] = str.upper,
        *,
        template: str = TEMPLATE,
        thinks: bool = False,
        **options: Any,
    ) -> None:
        self._answers = answers
        self._marks = [THINK, THOUGHT] if thinks else []
        about: dict[str, Any] = {"name": "chatter", "template": template, "prompt_length": 0}
        super().__init__(self._marks, Chatter._next, **about, **options)

    def ran(self) -> int:
        """Tokens that the model has run since the last time."""
        count = sum(len(fed) for fed in self.model.fed)
        self.model.forget()
        return count

    def _next(self, history: list[Token]) -> list[Token]:
        turns = self.text(history).split("<|im_start|>")
        if not turns[-1].startswith("assistant\n"):  # in the middle of a prompt
            return [self.end]
        message = turns[-2].removeprefix("user\n").removesuffix("\n")
        said = turns[-1].removeprefix("assistant\n")
        rest = self._answers(message)[len(said) :]
        if not rest:
            return [self.end]
        for mark in self._marks:
            if rest.startswith(mark):
                return [self.token(mark)]
        return [rest.encode()[0]]
