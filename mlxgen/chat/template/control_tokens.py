"""The tokens of a chat that steer the model; only the template may write them.

``ControlTokens`` chooses them among a tokenizer's added tokens and encodes a rendered chat.
Invariant: all characters of a control token that ``encode`` returns are the template's own; and up
to the first other text that looks like one, the tokens are exactly the tokenizer's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ...errors import PromptError
from ...tokens import Token, Vocabulary


class ControlTokens:
    """The control tokens of a vocabulary, for one chat template.

    They are the special and end tokens, and other added tokens that the template writes, that mark
    reasoning or tool calls, or that have the form ``<|...|>``. All other added tokens, such as
    words, HTML tags and line breaks, are text, whoever writes them.

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
        self.tokens = frozenset(self._contents)
        self._unknown = getattr(self._tokenizer, "unk_token_id", None)
        longest = sorted({*self._contents.values()}, key=len, reverse=True)
        self._any = "|".join(map(re.escape, longest)) or "(?!)"
        self._places = re.compile(f"(?={self._any})")  # where one begins, even inside another
        self._longest = len(longest[0]) if longest else 0
        # Their beginnings, reversed; the texts inside them; and their ends
        self._begins, self._inside, self._ends = set[str](), set[str](), set[str]()
        for content in map(str.strip, longest):
            size = len(content)
            self._begins |= {content[:at][::-1] for at in range(1, size)}
            self._ends |= {content[at:] for at in range(1, size)}
            self._inside |= {content[a:b] for a in range(1, size) for b in range(a + 1, size)}

    def seams(self, text: str) -> list[int]:
        """The places at which to break a text, so that no control token can form in it, or across
        its ends with what a template writes around it: the first character of each control token,
        and the text's own first or last character if a token could reach beyond it.
        """
        bare = text.strip()
        if not bare:
            return []
        start = text.index(bare)
        places = set(map(re.Match.start, self._places.finditer(text)))
        heads, tails = bare[: self._longest], bare[: -self._longest - 1 : -1]
        if bare in self._inside or not self._ends.isdisjoint(accumulate(heads)):
            places.add(start)
        if not self._begins.isdisjoint(accumulate(tails)):
            places.add(start + len(bare) - 1)
        return sorted(places)

    def encode(self, text: str, marks: str) -> list[Token]:
        """The tokens of a rendered chat, in which the two ``marks`` surround each seam of a text.
        Without marks, everything is the template's own.

        PromptError if the tokenizer cannot spell the other text without control tokens.
        """
        if set(marks).isdisjoint(text):
            return self._ids(text)
        seam = re.compile(f"{marks[0]}(.?){marks[1]}?|{marks[1]}", re.DOTALL)
        tokens: list[Token] = []
        run, between = "", 0
        for match in re.finditer(f"{seam.pattern}|(?P<own>{self._any})|\\Z", text, re.DOTALL):
            if match["own"] is None and match[0]:
                continue
            part = text[between : match.start()]
            bare = seam.sub(r"\1", part)
            if self._places.search(bare) or self._controls(self._ids(bare)):
                tokens += self._ids(run)
                spelled = []
                for piece in filter(None, seam.split(part)):
                    try:
                        spelled += self._vocabulary.continue_with(piece.encode())
                    except PromptError:  # a character without a token
                        inner = self._vocabulary.inner
                        spelled += self._ids(piece) if inner is None else inner.encode(piece).ids
                if self._controls(spelled):
                    raise PromptError(
                        "the messages contain the text of a control token that the tokenizer "
                        "cannot spell; leave it out, or set allow_control_tokens"
                    )
                tokens += spelled
                run = ""
            else:
                run += bare
            run, between = run + match[0], match.end()
        return tokens + self._ids(run)

    def _controls(self, tokens: Sequence[Token]) -> bool:
        """Whether there are control tokens among these."""
        return not self.tokens.isdisjoint({*tokens} - {self._unknown})

    def _ids(self, text: str) -> list[Token]:
        """The tokenizer's own tokens of a text."""
        if not text:
            return []
        return [*map(int, self._tokenizer(text, add_special_tokens=False)["input_ids"])]


def _steers(content: str, written: str | None) -> bool:
    """Whether an added token that is not special is a control token."""
    if content.isspace():
        return False
    if written is None or content in written:
        return True
    return content.startswith(("<|", "<｜")) or content.endswith(("|>", "｜>"))
