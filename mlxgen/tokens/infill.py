"""Filling in the middle (FIM): a prompt made of the text before a gap and the text after it.

Models that can do this were trained on texts in which marks, tokens of their own, introduce the
prefix, the suffix and, last, the text in between. Each family of models has its own marks, in its
own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..errors import PromptError
from .vocabulary import Token, Vocabulary

if TYPE_CHECKING:
    from .vocabulary import AnyTokenizer


class _Spelling(NamedTuple):
    """The marks of a family of models; ``ends_with_prefix``: the prompt has the suffix first."""

    prefix: str
    suffix: str
    middle: str = ""
    ends_with_prefix: bool = False


_SPELLINGS = (
    _Spelling("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen, Granite, CodeGemma
    _Spelling("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    _Spelling("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    _Spelling("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    _Spelling("▁<PRE>", "▁<SUF>", "▁<MID>"),  # CodeLlama
    _Spelling("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM
    _Spelling("<|prefix|>", "<|suffix|>", "<|middle|>"),  # Falcon
    _Spelling("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", True),  # Seed-Coder
    _Spelling("[PREFIX]", "[SUFFIX]", "", True),  # Codestral
)
_REPOSITORY = ("<|repo_name|>", "<repo_name>", "<reponame>")
_FILE = ("<|file_sep|>", "<file_sep>", "<filename>")
_ENDS = (
    *(mark for spelling in _SPELLINGS for mark in spelling[:3]),
    *("<|fim_pad|>", "<fim_pad>", "<fim-pad>", "▁<EOT>", "<|file_separator|>", "<|endoftext|>"),
    *(*_REPOSITORY, *_FILE),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """How prompts with a gap are written for one tokenizer. Make it with ``Infill.of``.

    ``ends``: the tokens that end the text in the gap; pass them as ``stop_tokens``.
    """

    ends: tuple[Token, ...]
    _vocabulary: Vocabulary
    _begin: tuple[Token, ...]
    _marks: tuple[Token, Token, Token | None]  # before the prefix, the suffix and the middle
    _ends_with_prefix: bool
    _repository: Token | None
    _file: Token | None

    @classmethod
    def of(cls, tokenizer: AnyTokenizer) -> Infill:
        """The ``Infill`` of a tokenizer or vocabulary; ``PromptError`` if that has no marks."""
        vocabulary = Vocabulary.of(tokenizer)
        found = vocabulary.derived("infill", lambda: cls._read(vocabulary))
        if found is None:
            raise PromptError(
                "this model cannot fill in the middle: its tokenizer has no marks for what comes "
                "before and after a gap; use one that has them, such as Qwen2.5-Coder"
            )
        return found

    @classmethod
    def _read(cls, vocabulary: Vocabulary) -> Infill | None:
        for prefix, suffix, middle, ends_with_prefix in _SPELLINGS:
            before, after = _token(vocabulary, prefix), _token(vocabulary, suffix)
            between = _token(vocabulary, middle) if middle else None
            if before is None or after is None or (middle and between is None):
                continue
            ends = {_token(vocabulary, text) for text in _ENDS} - {None} - vocabulary.eos
            begin = [token for token in vocabulary.encode("") if token not in vocabulary.eos]
            return cls(
                tuple(sorted(token for token in ends if token is not None)),
                vocabulary,
                tuple(begin),
                (before, after, between),
                ends_with_prefix,
                _first(vocabulary, _REPOSITORY),
                _first(vocabulary, _FILE),
            )
        return None

    def prompt(
        self,
        prefix: str | Sequence[Token],
        suffix: str,
        files: Iterable[tuple[str, str]] = (),
    ) -> list[Token]:
        """The tokens of a prompt whose continuation fits between ``prefix`` and ``suffix``.

        ``files``: names and texts of other files, which the model sees first. Text that looks like
        a mark stays plain text. Raises ``PromptError`` if the text cannot be spelled in tokens.
        """
        before, after, between = self._marks
        if isinstance(prefix, str):  # SentencePiece encodes the start of a text with a space
            opens = prefix and self._vocabulary.strips_space
            prefix = self._spelled(f" {prefix}" if opens else prefix)
        head = [before, *prefix]
        tail = [after, *self._spelled(suffix)]
        parts = [*tail, *head] if self._ends_with_prefix else [*head, *tail]
        last = [] if between is None else [between]
        return [*self._begin, *self._shown(list(files)), *parts, *last]

    def _shown(self, files: Sequence[tuple[str, str]]) -> list[Token]:
        """The tokens of the files that come before the one with the gap."""
        if not files:
            return []
        if self._file is None:
            return self._spelled("".join(f"{text}\n\n" for _, text in files))
        tokens = []
        if self._repository is not None:
            tokens += [self._repository, *self._spelled("project\n")]
        for name, text in files:
            tokens += [self._file, *self._spelled(f"{name}\n{text}\n")]
        return [*tokens, self._file, *self._spelled("filename\n")]

    def _spelled(self, text: str) -> list[Token]:
        try:
            return self._vocabulary.continue_with(text.encode())
        except UnicodeEncodeError as error:
            raise PromptError(
                f"a lone surrogate at index {error.start} is not a character; remove it"
            ) from error


def _token(vocabulary: Vocabulary, text: str) -> Token | None:
    """The token with this name, or ``None``."""
    tokenizer = vocabulary.tokenizer
    token = tokenizer.convert_tokens_to_ids(text)
    if token is None or tokenizer.convert_ids_to_tokens(token) != text:
        return None
    return int(token)


def _first(vocabulary: Vocabulary, names: Iterable[str]) -> Token | None:
    known = (_token(vocabulary, name) for name in names)
    return next((token for token in known if token is not None), None)
