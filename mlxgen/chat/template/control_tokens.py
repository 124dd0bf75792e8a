"""The tokens of a chat that steer the model; only the template may write them.

``ControlTokens`` chooses them among a tokenizer's added tokens and encodes a rendered chat.
Invariant: all characters of a control token that ``encode`` returns are the template's own; and up
to the first other text that has the form of one, the tokens are exactly those of the tokenizer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

from ...errors import PromptError
from ...tokens import Token, Vocabulary

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Where the template's own characters are: (start, end), ascending, and never adjacent."""


class ControlTokens:
    """The control tokens of a vocabulary, for one chat template.

    They are the special and end tokens, and those other added tokens that the template writes, that
    mark reasoning or tool calls, or that have the form ``<|...|>``. The rest are words that a
    tokenizer was taught, HTML tags and line breaks: text, whoever writes it.

    ``literals``: the template's own texts. If they are unknown (None), all added tokens count
    except white space.
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

    def seams(self, text: str) -> list[int]:
        """The characters of a text of which a control token would be made, with what is before and
        after them in the text or in what a template writes around it: the first of each control
        token in it, and its own first or last one if a token may reach over it.
        """
        bare = text.strip()
        if not bare:
            return []
        start = text.index(bare)
        begins, inside, ends = self._pieces
        places = {match.start() for match in self.pattern.finditer(text)}
        sizes = range(1, min(len(bare), self._longest) + 1)
        if bare in inside or any(bare[:size] in ends for size in sizes):
            places.add(start)
        if any(bare[-size:] in begins for size in sizes):
            places.add(start + len(bare) - 1)
        return sorted(places)

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._contents.values()), default=0)

    @cached_property
    def _pieces(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        """What control tokens begin with, have inside, and end with."""
        begins, inside, ends = set(), set(), set()
        for content in map(str.strip, self._contents.values()):
            size = len(content)
            begins |= {content[:at] for at in range(1, size)}
            ends |= {content[at:] for at in range(1, size)}
            inside |= {content[a:b] for a in range(1, size) for b in range(a + 1, size)}
        return frozenset(begins), frozenset(inside), frozenset(ends)

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Finds every place where one begins, even inside another; group 1 is the longest there."""
        longest = sorted(set(self._contents.values()), key=len, reverse=True)
        return re.compile(f"(?=({'|'.join(map(re.escape, longest)) or '(?!)'}))")

    def encode(self, text: str, own: Spans | None) -> list[Token]:
        """The tokens of a rendered chat. ``own``: the spans of the template; None: all of it.

        PromptError if the tokenizer cannot spell the other text without control tokens.
        """
        tokens = self._ids(text)
        if own is None:
            return tokens
        written = self._written(text, own)
        edges = [0, *(place for match in written for place in match[:2]), len(text)]
        between = list(zip(edges[::2], edges[1::2], strict=True))
        forged = [each for each in between if self.pattern.search(text, *each)]
        if [token for token in tokens if self._is_control(token)] != [each[2] for each in written]:
            parts = ((each, self._ids(text[slice(*each)])) for each in between)
            more = [each for each, ids in parts if any(map(self._is_control, ids))]
            forged = sorted({*forged, *more})
        if not forged:
            return tokens
        tokens, done = [], 0
        for start, end in forged:
            tokens += self._ids(text[done:start]) + self._spelled(text[start:end])
            done = end
        return tokens + self._ids(text[done:])

    def _written(self, text: str, own: Spans) -> list[tuple[int, int, Token]]:
        """The control tokens that the template wrote: where they start and end, and which."""
        found: list[tuple[int, int, Token]] = []
        tokens = {content: token for token, content in self._contents.items()}
        for match in self.pattern.finditer(text):
            start, end = match.span(1)
            if _holds(own, start, end) and (not found or start >= found[-1][1]):
                found.append((start, end, tokens[match[1]]))
        return found

    def _is_control(self, token: Token) -> bool:
        return token in self._contents and token != self._unknown

    def _ids(self, text: str) -> list[Token]:
        """The tokenizer's own tokens of a text."""
        if not text:
            return []
        return [int(t) for t in self._tokenizer(text, add_special_tokens=False)["input_ids"]]

    def _spelled(self, text: str) -> list[Token]:
        """The tokens of a text between control tokens, in which none is made: it is cut after the
        first character of each, because the tokenizer's model may have it as a word."""
        places = [0, *(match.start() + 1 for match in self.pattern.finditer(text)), len(text)]
        tokens: list[Token] = []
        for piece in (text[a:b] for a, b in pairwise(places)):
            try:
                tokens += self._vocabulary.continue_with(piece.encode())
            except PromptError:  # a character without a token
                inner = self._vocabulary.inner
                tokens += self._ids(piece) if inner is None else inner.encode(piece).ids
        if any(map(self._is_control, tokens)):
            raise PromptError(
                "the messages contain the text of a control token that the tokenizer cannot spell; "
                "leave it out, or set allow_control_tokens"
            )
        return tokens


def _steers(content: str, written: str | None) -> bool:
    """Whether an added token that is not special is a control token."""
    if content.isspace():
        return False
    if written is None or content in written:
        return True
    return content.startswith(("<|", "<｜")) or content.endswith(("|>", "｜>"))


def _holds(own: Spans, start: int, end: int) -> bool:
    """Whether one of the spans contains all characters from ``start`` to ``end``."""
    if start >= end:
        return True
    at = bisect_right(own, start, key=lambda span: span[0]) - 1
    return at >= 0 and own[at][1] >= end
