"""Language models that say what a test writes down, token by token.

Built on ``ScriptedModel`` and the alphabet tokenizer: a token is a single byte or one of
the pieces that the test names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlxgen import LanguageModel
from mlxgen.tokens import Token, Vocabulary

from .scripted import ScriptedModel
from .tokenizers import alphabet_tokenizer

PROMPT = [ord("?")]
END = "<end>"
Piece = str | bytes | int


class Speaker:
    """``lm``, its scripted ``model``, and ``token(piece)`` to name tokens by their text."""

    def __init__(
        self,
        pieces: Sequence[str],
        say: Callable[[Speaker, list[Token]], Sequence[Token] | dict[Token, float]],
        **options: Any,
    ) -> None:
        extra = sorted({p for p in pieces if p != END and len(p.encode()) > 1})
        self._extra = {piece: 256 + i for i, piece in enumerate(extra)}
        self.tokenizer = alphabet_tokenizer(extra)
        self.vocabulary = Vocabulary.of(self.tokenizer)
        (self.end,) = self.vocabulary.eos
        make_cache = options.pop("make_cache", None)
        width = options.pop("vocab_size", self.vocabulary.size)
        self.prompt_length = options.pop("prompt_length", len(PROMPT))
        self.model = ScriptedModel(
            width, lambda history: say(self, list(history[self.prompt_length :])), make_cache
        )
        self.lm = LanguageModel(self.model, self.tokenizer, **options)
        _ = self.lm.vocab_size  # asked once, so that tests can count passes
        self.model.fed.clear()

    def token(self, piece: Piece) -> Token:
        if isinstance(piece, int):
            return piece
        if piece == END:
            return self.end
        data = piece.encode() if isinstance(piece, str) else piece
        return data[0] if len(data) == 1 else self._extra[data.decode()]

    def tokens(self, pieces: Sequence[Piece]) -> list[Token]:
        return [self.token(piece) for piece in pieces]

    def text(self, tokens: Sequence[Token]) -> str:
        return self.vocabulary.decode(tokens)


def reciter(pieces: Sequence[Piece], *, extra: Sequence[str] = (), **options: Any) -> Speaker:
    """Says ``pieces`` one after the other, then the end token; by position, come what may."""
    strings = [p for p in pieces if isinstance(p, str)]

    def say(self: Speaker, generated: list[Token]) -> Sequence[Token]:
        position = len(generated)
        return [self.token(pieces[position])] if position < len(pieces) else [self.end]

    return Speaker([*strings, *extra], say, **options)


def talker(choices: Mapping[str, Sequence[str]], **options: Any) -> Speaker:
    """Says what ``choices`` has for the text so far, best first; the end token elsewhere."""
    pieces = [piece for ranked in choices.values() for piece in ranked]

    def say(self: Speaker, generated: list[Token]) -> Sequence[Token]:
        ranked = choices.get(self.text(generated), [])
        return [*(self.token(piece) for piece in ranked), self.end]

    return Speaker(pieces, say, **options)
