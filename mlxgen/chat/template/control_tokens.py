"""The tokens of a chat that steer the model; only the template may write them.

``ControlTokens`` chooses them among a tokenizer's added tokens and encodes a rendered chat.
Invariant: all characters of a control token that ``encode`` returns are the template's own; and if
no other text has the form of a control token, the tokens are exactly those of the tokenizer for
the whole text.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

from ...errors import PromptError
from ...tokens import Token, Vocabulary

Spans: TypeAlias = tuple[tuple[int, int], ...]
"""Where the template's own characters are: (start, end), ascending, and never adjacent."""


class _Match(NamedTuple):
    """An added token: its place among the tokens, and its place in the text."""

    at: int
    start: int
    end: int
    is_forged: bool


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
        kept, place, is_forged = 0, 0, False  # how many tokens and characters are done
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
                continue  # other text without a token
            # A token may have absorbed the white space around it.
            first, last = (
                start + len(content) - len(content.lstrip()),
                start + len(content.rstrip()),
            )
            is_forged = token in self._contents and not _holds(own, first, last)
            matches.append(_Match(index, start, end, is_forged))
        return matches

    # ---- spelling ----

    def _spelled(self, text: str, *, opens: bool) -> list[Token]:
        """The tokens of a text, spelled without added tokens; ``opens``: it starts the chat."""
        tokens = _ids(self._twins[int(opens)], text)
        if self._is_free(tokens):
            return tokens
        tokens = []  # the tokenizer's model itself has the token's text as a word
        for piece in self.broken(text):
            try:
                tokens += self._vocabulary.continue_with(piece.encode())
            except PromptError:  # a character without a token
                inner = self._vocabulary.inner or self._twins[0]
                tokens += _ids(inner, piece)
        return self._checked(tokens)

    @cached_property
    def _twins(self) -> tuple[Any, Any]:
        """The tokenizer without added tokens: for the middle of a text, and for its beginning."""
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
        """``encode`` for tokenizers that do not say where their tokens are in the text."""
        forged = [
            match.start()
            for match in self.pattern.finditer(text)
            if not _holds(own, match.start(), match.start() + len(match.group(1)))
        ]
        if not forged:
            return tokens
        tokens = []
        for piece in self.broken(text, forged):
            tokens += self._tokenizer(piece, add_special_tokens=False)["input_ids"]
        return [int(token) for token in tokens]

    def broken(self, text: str, starts: Sequence[int] | None = None) -> list[str]:
        """The text, cut after the first character of control tokens (or those at ``starts``)."""
        if starts is None:
            starts = [match.start() for match in self.pattern.finditer(text)]
        places = [0, *(start + 1 for start in starts), len(text)]
        return [text[a:b] for a, b in pairwise(places)]

    def _is_free(self, tokens: Iterable[Token]) -> bool:
        return not any(t in self._contents and t != self._unknown for t in tokens)

    def _checked(self, tokens: list[Token]) -> list[Token]:
        if self._is_free(tokens):
            return tokens
        raise PromptError(
            "the messages contain the text of a control token that the tokenizer cannot spell; "
            "leave it out, or set allow_control_tokens"
        )


def _ids(tokenizer: Any, text: str) -> list[Token]:
    """The tokens of a text. Unlike ``encode``, a batch does not hold the GIL."""
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


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
