"""Which tokens of a chat steer the model, and text in which only the template may write them.

Owns ``ControlTokens``: the choice among a tokenizer's added tokens, and the encoding of a rendered
chat. Must never know templates or messages. Invariant: a control token in what ``encode`` gives
stands where all its characters are the template's own; and where no other text has the form of a
control token, the tokens are exactly those of the tokenizer for the whole text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

from ...errors import PromptError
from ...tokens import Token, Vocabulary
from .authored import Spans


class _Match(NamedTuple):
    """An added token in a text: its place among the tokens, and in the text."""

    at: int
    start: int
    end: int
    is_forged: bool


class ControlTokens:
    """The control tokens of a vocabulary, for one chat template.

    They are the special and end tokens, and of the other added tokens those that the template
    writes, that mark reasoning or tool calls, or that have the form ``<|...|>``. What is left are
    words that a tokenizer was taught, HTML tags, line breaks: text, whoever writes it.

    ``literals``: the template's own texts, or None where they are not known; then all added
    tokens count that are more than white space.
    """

    def __init__(self, vocabulary: Vocabulary, literals: str | None) -> None:
        self._vocabulary = vocabulary
        wrapper = vocabulary.tokenizer
        self._tokenizer: Any = wrapper._tokenizer
        marks = (
            *(wrapper.think_start, wrapper.think_end),
            *(wrapper.tool_call_start, wrapper.tool_call_end),
            *wrapper.structural_markers,
        )
        written = None if literals is None else "\0".join((literals, *filter(None, marks)))
        added = getattr(self._tokenizer, "added_tokens_decoder", None) or {}
        self._contents: dict[Token, str] = {
            token: str(content.content)
            for token, content in added.items()
            if str(content.content)
            and (token in vocabulary.special or _steers(str(content.content), written))
        }
        self._unknown = getattr(self._tokenizer, "unk_token_id", None)

    @property
    def tokens(self) -> frozenset[Token]:
        """The control tokens."""
        return frozenset(self._contents)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds every place where one begins, those within others too; group 1 is the longest."""
        longest = sorted(set(self._contents.values()), key=len, reverse=True)
        return re.compile(f"(?=({'|'.join(map(re.escape, longest)) or '(?!)'}))")

    def encode(self, text: str, own: Spans | None) -> list[Token]:
        """The tokens of a rendered chat; ``own``: the spans of the template, None: all is its.

        PromptError for text that the tokenizer cannot spell without control tokens.
        """
        encoding = self._tokenizer(text, add_special_tokens=False)
        tokens = [int(token) for token in encoding["input_ids"]]
        if own is None:
            return tokens
        if not getattr(encoding, "is_fast", False):
            return self._encoded_slowly(text, tokens, own)
        matches = self._matches(text, tokens, encoding, own)
        if not any(match.is_forged for match in matches):
            return tokens
        spelled: list[Token] = []
        kept, place, is_forged = 0, 0, False  # tokens and characters that are done
        ends = _Match(len(tokens), len(text), len(text), False)
        for match in (*matches, ends):
            if match.is_forged:
                is_forged = True
                continue
            if is_forged:
                spelled += self._spelled(text[place : match.start], opens=place == 0)
                spelled += tokens[match.at : match.at + 1]
            else:
                spelled += tokens[kept : match.at + 1]
            kept, place, is_forged = match.at + 1, match.end, False
        return spelled

    def _matches(
        self, text: str, tokens: Sequence[Token], encoding: Any, own: Spans
    ) -> list[_Match]:
        """The added tokens in a text, in order."""
        added = self._vocabulary.added
        matches = []
        for index, token in enumerate(tokens):
            if token not in added:
                continue
            span = encoding.token_to_chars(0, index)
            if span is None:
                continue
            start, end = span
            content = text[start:end]
            if token == self._unknown and content.strip() != self._contents.get(token):
                continue  # some other text that has no token
            # White space beside a token may have become part of it.
            first, last = (
                start + len(content) - len(content.lstrip()),
                start + len(content.rstrip()),
            )
            is_forged = token in self._contents and not _holds(own, first, last)
            matches.append(_Match(index, start, end, is_forged))
        return matches

    # ---- spelling ----

    def _spelled(self, text: str, *, opens: bool) -> list[Token]:
        """The tokens of a text without added tokens; ``opens``: it is the beginning of all."""
        tokens = _ids(self._twins[int(opens)], text)
        if self._is_free(tokens):
            return tokens
        tokens = []  # a model that knows the token's text as a word of its own
        for piece in self._broken(text, [match.start() for match in self.pattern.finditer(text)]):
            try:
                tokens += self._vocabulary.continue_with(piece.encode())
            except PromptError:  # a character that has no token
                inner = self._vocabulary.inner or self._twins[0]
                tokens += _ids(inner, piece)
        return self._checked(tokens)

    @cached_property
    def _twins(self) -> tuple[Any, Any]:
        """The tokenizer without added tokens: in the middle of a text, and at its beginning."""
        from tokenizers import Tokenizer, pre_tokenizers

        backend = self._tokenizer.backend_tokenizer
        middle, opening = Tokenizer(backend.model), Tokenizer(backend.model)
        for twin in (middle, opening):
            if backend.normalizer is not None:
                twin.normalizer = backend.normalizer
            if backend.pre_tokenizer is not None:
                twin.pre_tokenizer = backend.pre_tokenizer
        if backend.pre_tokenizer is not None:
            state = backend.pre_tokenizer.__getstate__().decode()
            if '"first"' in state:  # a space before the first word, and only there
                steps = json.loads(
                    state.replace('"prepend_scheme":"first"', '"prepend_scheme":"never"')
                )
                changed = pre_tokenizers.Sequence([])
                changed.__setstate__(
                    json.dumps({"type": "Sequence", "pretokenizers": [steps]}).encode()
                )
                middle.pre_tokenizer = changed
        return middle, opening

    def _encoded_slowly(self, text: str, tokens: list[Token], own: Spans) -> list[Token]:
        """For tokenizers that do not say where their tokens stand in the text."""
        forged = [
            match.start()
            for match in self.pattern.finditer(text)
            if not _holds(own, match.start(), match.start() + len(match.group(1)))
        ]
        if not forged:
            return tokens
        tokens = []
        for piece in self._broken(text, forged):
            tokens += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        return [int(token) for token in tokens]

    def _broken(self, text: str, starts: Sequence[int]) -> list[str]:
        """The text, cut behind the first character of what starts at these places."""
        places = [0, *(start + 1 for start in starts), len(text)]
        pieces = [text[a:b] for a, b in pairwise(places)]
        return [piece for piece in pieces if piece]

    def _is_free(self, tokens: Iterable[Token]) -> bool:
        return not any(t in self._contents and t != self._unknown for t in tokens)

    def _checked(self, tokens: list[Token]) -> list[Token]:
        if self._is_free(tokens):
            return tokens
        raise PromptError(
            "the messages hold the text of a control token that the tokenizer cannot spell; leave "
            "it out, or allow_control_tokens"
        )


def _ids(tokenizer: Any, text: str) -> list[Token]:
    """The tokens of a text; unlike ``encode``, a batch does not keep Python's lock meanwhile."""
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _steers(content: str, written: str | None) -> bool:
    """Whether an added token that is not special is more than text."""
    if content.isspace():
        return False
    if written is None or content in written:
        return True
    return content.startswith(("<|", "<｜")) or content.endswith(("|>", "｜>"))


def _holds(own: Spans, start: int, end: int) -> bool:
    """Whether the characters from ``start`` to ``end`` are all within one of the spans."""
    if start >= end:
        return True
    at = bisect_right(own, start, key=lambda span: span[0]) - 1
    return at >= 0 and own[at][1] >= end
