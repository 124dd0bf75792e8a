"""The model's answer to a conversation: it streams, and can be stopped, taken back and continued.

Owns the way from a conversation to a stream and back, and places in an answer. Must never know a
terminal. An ``Answer`` is a value, of which only the tokens are kept; taking back some of it gives
another one. To continue it, a new stream is given these tokens, whose KV is in the prefix cache.
Invariant: the concatenated events of an answer are the model's text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from ..chat.answer import AnswerReader
from ..chat.calls.use import Form
from ..chat.dialect import Dialect
from ..chat.events import ChatEvent, Reasoning, Text
from ..chat.marks import Reading
from ..chat.template.format import Chat
from ..chat.turn import Plan, Turn, plan_turn
from ..engine import Chunk, FinishReason, Options, Prompt, Stream, Usage
from ..errors import OptionError, PromptError, RewindError, StateError
from ..language_model import LanguageModel
from ..text.decoder import TextDecoder
from ..tokens import Token, Vocabulary
from ..words import counted
from .branches import Branches, tokens_of
from .conversation import Conversation, Message

ALTERNATIVES = 5  # likely tokens of each position that an answer keeps
_BYTE = re.compile(r"\\x([0-9a-f]{2})")


class ContextError(PromptError):
    """No answer fits after the conversation."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The last answer: its versions, and which of them is shown. A place in it is the number of
    tokens before it.

    ``exchange``: its messages in the conversation.
    """

    reading: Reading
    vocabulary: Vocabulary
    branches: Branches = field(default_factory=Branches)
    usage: Usage = field(default_factory=Usage)
    exchange: tuple[Message, ...] = ()

    @property
    def chunks(self) -> Sequence[Chunk]:
        """The tokens of the version that is shown."""
        return self.branches.all[self.branches.here]

    @property
    def spoken(self) -> Sequence[Chunk]:
        """The tokens that have a text of their own: all but an end token."""
        chunks = self.chunks
        if chunks and (chunks[-1].token is None or chunks[-1].token in self.vocabulary.eos):
            return chunks[:-1]
        return chunks

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; ``None`` if it was stopped or taken back."""
        return self.chunks[-1].finish_reason if self.chunks else None

    @property
    def used(self) -> int:
        """How many tokens of the context it takes, with its prompt."""
        return self.usage.prompt_tokens + len(tokens_of(self.chunks))

    def said(self, kind: type[Text | Reasoning] = Text) -> str:
        """The text without the reasoning, or the reasoning."""
        events = (event for _, events in self.readings(self.chunks) for event in events)
        return "".join(event.text for event in events if isinstance(event, kind))

    def readings(
        self, chunks: Sequence[Chunk]
    ) -> Iterator[tuple[Chunk | None, Sequence[ChatEvent]]]:
        """The events of each chunk of a version of this answer, and last, those of its end."""
        reader = AnswerReader(self.reading)
        for chunk in chunks:
            yield chunk, reader.push(chunk, self.usage)[0]
        if not chunks or chunks[-1].finish_reason is None:
            yield None, reader.cancel(self.usage)

    def texts(self, chunks: Sequence[Chunk]) -> list[str]:
        """What a person sees of each chunk: no marks, but an empty line after the reasoning."""
        found: list[str] = []
        thought = False
        for chunk, events in self.readings(chunks):
            text = ""
            for event in events:
                if isinstance(event, Reasoning | Text) and event.text:
                    apart = thought and isinstance(event, Text)
                    text += "\n\n" + event.text if apart else event.text
                    thought = isinstance(event, Reasoning)
            if chunk is None and found:
                found[-1] += text
            elif chunk is not None:
                found.append(text)
        return found

    def piece(self, token: Token) -> str:
        """The text of a token; bytes that are a part of a character are written as ``<0xF0>``."""
        piece = self.vocabulary.piece(token)
        try:
            return piece.decode()
        except UnicodeDecodeError:
            text = piece.decode("utf-8", "backslashreplace")
            return _BYTE.sub(lambda byte: f"<0x{byte[1].upper()}>", text)

    # ---- places ----

    def last(self, count: int) -> int:
        """The place before the last ``count`` tokens."""
        have = len(self.spoken)
        if not 0 <= count <= have:
            raise RewindError(
                f"the answer has {counted(have, 'token')}; take back at most {have}", have
            )
        return have - count

    def before(self, text: str) -> int:
        """The place before the last occurrence of a text: before the token in which that begins."""
        at = "".join(chunk.text for chunk in self.spoken).rfind(text)
        if not text or at < 0:
            raise OptionError("/rewind", f"the answer has no {text!r}; /tokens shows its tokens")
        ends = list(accumulate(len(chunk.text) for chunk in self.spoken))
        index = bisect_right(ends, at)
        while index and not self.spoken[index - 1].text:  # its text came with a later token
            index -= 1
        return index

    def at(self, number: int) -> int:
        """The place before a token, by its number from 1 on, as ``/tokens`` shows it."""
        have = len(self.spoken)
        if not 1 <= number <= have:
            raise OptionError(f"@{number}", f"the answer has the tokens @1 to @{have}")
        return number - 1

    def back(self, place: int) -> Answer:
        """The answer up to a place."""
        return replace(self, branches=self.branches.leaves(self.chunks[:place]))

    def there(self, place: int) -> Chunk | None:
        """The token at a place, or there in another version with the same tokens before it."""
        if place < len(self.chunks):
            return self.chunks[place]
        before = tokens_of(self.chunks)
        for version in reversed([*self.branches.all.values()]):
            if len(version) > place and tokens_of(version[:place]) == before:
                return version[place]
        return None

    def spelled(self, place: int, text: str, *, exact: bool = False) -> list[Token]:
        """The tokens of a text to put at a place.

        If the text is one of the likely tokens there, it is that token. Otherwise, unless
        ``exact``, the text gets the leading space of the token that was there.
        """
        old = self.there(place)
        if not exact and old is not None:
            for token in (old.token, *(token for token, _ in old.top)):
                if token is not None and self.piece(token).strip() == text:
                    return [token]
            if old.token is not None and self.piece(old.token)[:1].isspace():
                text = self.piece(old.token)[0] + text
        tokens = self.vocabulary.continue_with(text.encode())
        if not tokens:
            raise OptionError("/instead", "expected a text or a token to put there, got nothing")
        return tokens


class Answerer:
    """Answers conversations with one model, on the calling thread."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self._cache = lm.prefix_cache  # made before the first answer, so that it fills it, too
        self._dialect = Dialect.of(lm.vocabulary, lm.images)

    def checked(self, conversation: Conversation) -> Conversation:
        """The same; raises ``OptionError`` or ``GrammarError`` now for settings and forms that this
        model cannot follow, rather than at the next answer."""
        Options.of(conversation.options | {"close_json": None}).check_vocabulary(self.lm.vocab_size)
        if conversation.form is not None:
            conversation.form.bind(self.lm.tokenizer, self.lm.vocab_size)
            if not self._dialect.takes_forms:
                raise OptionError(
                    "filters",
                    "this model writes headers before its text, so it cannot follow a form; use "
                    "/json off, /regex off or /lark off",
                )
        return conversation

    def count(self, conversation: Conversation) -> int:
        """How many tokens the prompt of a conversation has."""
        return len(self._plan(conversation).ids) if conversation.messages else 0

    def begin(
        self, asked: Conversation, last: Answer | None = None, then: Sequence[Token] = ()
    ) -> tuple[Stream, Answer, list[Chunk]]:
        """A stream of the answer to the waiting message, the answer so far, and its chunks.
        ``last``: an answer to go on with; ``then``: tokens that the user puts after its own.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` before anything runs.
        """
        if last is not None and last.finish_reason not in (None, "length"):
            raise StateError(
                "the answer has ended; take back some of it with /rewind, or put something else "
                "into it with /instead"
            )
        plan = self._plan(asked)
        answer = last or Answer(plan.reading, self.lm.vocabulary)
        given = self._given(answer, then, plan.opens_text)
        self._check_room(len(plan.ids) + len(given))
        options = {"top_logprobs": ALTERNATIVES, **asked.options}
        most = options["max_tokens"]
        if most is not None and len(given) >= most:
            options["max_tokens"] = most + len(given)
        if plan.spec is not None:
            options["filters"] = [plan.spec]
        options["prefix"] = tokens_of(given)
        prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
        try:
            stream = self.lm.stream(prompt, **options)
        except OptionError as error:
            if error.field != "prefix" or error.index is None:
                raise
            known = {"text_banned": "it is banned", "text_ended": "the text ends there"}
            why = known.get(error.code or "", error.__cause__)
            name = "/continue" if error.index < len(answer.chunks) else "/instead"
            piece = answer.piece(options["prefix"][error.index])
            problem = f"{piece!r} is not allowed at token {error.index + 1}: {why}"
            raise OptionError(name, problem) from error
        return stream, replace(answer, reading=plan.reading), given

    def _plan(self, conversation: Conversation) -> Plan:
        spec = conversation.form
        form = None if spec is None else Form("filters", spec, "json" in conversation.forms)
        chat = Chat(
            conversation.messages,
            template=conversation.template,
            allow_control_tokens=conversation.allow_control_tokens,
        )
        return plan_turn(Turn(chat=chat, form=form), self._dialect)

    def _given(self, answer: Answer, then: Sequence[Token], opens_text: bool) -> list[Chunk]:
        """Chunks of the tokens that an answer begins with, with all of their text, and with the
        known odds of tokens that the user put there. Without such tokens, those at the end whose
        text a stop or a ban held back are left out, to be drawn again."""
        chunks = list(answer.chunks)
        old = answer.there(len(chunks)) if then else None
        for token in then:
            chunk = Chunk("", token, len(chunks))
            if old is not None:
                chunk = replace(chunk, logprob=dict(old.top).get(token), top=old.top)
            old = None  # what follows has other odds now
            chunks.append(chunk)
        decoder = TextDecoder(self.lm.vocabulary, strip=opens_text)
        given = [replace(c, text=decoder.advance(c.token)) for c in chunks if c.token is not None]
        shown = sum(len(chunk.text) for chunk in answer.chunks)
        while given and not then and sum(len(chunk.text) for chunk in given) > shown:
            given.pop()
        if given and given[-1].finish_reason is not None:
            given[-1] = replace(given[-1], finish_reason=None, stop=None)
        return given

    def _check_room(self, tokens: int) -> None:
        if self.lm.max_context is not None and tokens >= self.lm.max_context:
            raise ContextError(
                f"with this message the conversation has {tokens} tokens, but the context of "
                f"{self.lm.name} holds {self.lm.max_context}, including the answer; drop the "
                "oldest exchanges with /drop, take back the last ones with /undo, start over with "
                "/clear, or write less"
            )
