"""The model's answer to a conversation: it streams, can be stopped, taken back and gone on with.

Owns the way from a conversation to a stream and back: the plan of the turn, the stream as long as
the answer is the last one, and what goes into the prefix cache. Must never know a terminal.
Invariant: the concatenated events of an answer are the model's text; what an answer has run is in
the prefix cache once it is finished, whether it ended or was stopped; and wherever it is moved, its
stream stands after the tokens of its chunks, or nothing has changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..chat.answer import AnswerReader
from ..chat.calls.use import Form
from ..chat.dialect import Dialect
from ..chat.events import ChatEvent, Reasoning, Text
from ..chat.splitter import Reading
from ..chat.template.format import Chat
from ..chat.turn import Plan, Turn, plan_turn
from ..engine import Chunk, FinishReason, Options, Prompt, Stream, Usage
from ..errors import MlxgenError, OptionError, PromptError, StateError
from ..language_model import LanguageModel
from ..tokens import Token, in_common
from .conversation import Conversation

ALTERNATIVES = 5  # likely tokens of each position that an answer keeps


class ContextError(PromptError):
    """The conversation has ``tokens`` tokens, and no answer fits after them."""

    def __init__(self, message: str, tokens: int) -> None:
        super().__init__(message)
        self.tokens = tokens


class Answerer:
    """Answers conversations with one model, on the calling thread."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self._cache = lm.prefix_cache  # made before the first answer, so that it fills it, too
        self._dialect = Dialect.of(lm.vocabulary, lm.images)

    def check(self, conversation: Conversation) -> None:
        """Raise ``OptionError`` or ``GrammarError`` now for settings and forms that this model
        cannot follow, rather than at the next answer."""
        Options.of(conversation.options | {"close_json": None}).check_vocabulary(self.lm.vocab_size)
        if conversation.form is not None:
            conversation.form.bind(self.lm.tokenizer, self.lm.vocab_size)
            if not self._dialect.takes_forms:
                raise OptionError(
                    "filters",
                    "this model writes headers before its text, so it cannot follow a form; use "
                    "/json off, /regex off or /lark off",
                )

    def begin(self, conversation: Conversation) -> Answer:
        """The answer to the waiting message, which is to be closed.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` before anything runs.
        """
        plan = self._plan(conversation)
        self._check_room(len(plan.ids))
        return self._open(plan, conversation)

    def resume(self, asked: Conversation, answer: Answer) -> Answer:
        """The answer to the waiting message, to go on with it: with a stream of its own if the
        settings, or what was said before, have changed, or if it had all the tokens that it might.

        Raises ``StateError`` if it has ended.
        """
        if answer.finish_reason not in (None, "length"):
            raise StateError(
                "the answer has ended; take back some of it with /rewind, or put something else "
                "into it with /instead"
            )
        plan, have = self._plan(asked), len(answer.tokens) + len(answer.pending)
        self._check_room(len(plan.ids) + have)
        if answer.finish_reason is None and answer.asked == _asked(plan, asked):
            return answer
        other = self._open(plan, asked, more=have)
        try:
            other.move(answer.chunks, answer.pending)
        except MlxgenError:
            other.close()
            raise
        answer.close()
        return other

    def count(self, conversation: Conversation) -> int:
        """How many tokens the prompt of a conversation has whose message waits."""
        return len(self._plan(conversation).ids)

    def _plan(self, conversation: Conversation) -> Plan:
        spec = conversation.form
        form = None if spec is None else Form("filters", spec, "json" in conversation.forms)
        return plan_turn(Turn(chat=_chat(conversation), form=form), self._dialect)

    def _open(self, plan: Plan, conversation: Conversation, *, more: int = 0) -> Answer:
        options = {"top_logprobs": ALTERNATIVES, **conversation.options}
        if more and options["max_tokens"] is not None:
            options["max_tokens"] += more
        if plan.spec is not None:
            options["filters"] = [plan.spec]
        prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
        stream = self.lm.stream(prompt, **options)
        asked = _asked(plan, conversation)
        return Answer(stream, plan.reading, self.lm.max_context, asked, stream.usage)

    def _check_room(self, tokens: int) -> None:
        if self.lm.max_context is not None and tokens >= self.lm.max_context:
            raise ContextError(
                f"with this message the conversation has {tokens} tokens, but the context of "
                f"{self.lm.name} holds {self.lm.max_context}, including the answer; drop the "
                "oldest exchanges with /drop, take back the last ones with /undo, start over with "
                "/clear, or write less",
                tokens,
            )


@dataclass(slots=True)
class Answer:
    """One answer: an iterator over its chunks so far and then the next ones, with their events.

    ``finish`` returns the last events; after it, ``text``, ``reasoning`` and the rest do not
    change until it is moved or iterated again. Without it, as after an error, nothing of the answer
    goes into the prefix cache. ``pending`` are tokens that somebody put after its chunks: the next
    iteration gives theirs first.
    """

    stream: Stream
    reading: Reading
    max_context: int | None
    asked: Any  # what it depends on
    usage: Usage  # up to the end
    chunks: list[Chunk] = field(default_factory=list)
    events: list[ChatEvent] = field(default_factory=list)
    pending: list[Token] = field(default_factory=list)
    _reader: AnswerReader = field(init=False)
    _given: int = 0  # characters that the stream has given of the text, perhaps once more
    _known: Mapping[int, Chunk] = field(default_factory=dict)  # what was in the place of others

    def __post_init__(self) -> None:
        self._reader = AnswerReader(self.reading)

    def __iter__(self) -> Iterator[tuple[Chunk, Sequence[ChatEvent]]]:
        self._reader, self.events = AnswerReader(self.reading), []
        for chunk in self.chunks:
            yield chunk, self._read(chunk)
        shown = sum(len(chunk.text) for chunk in self.chunks)
        have = len(self.tokens)
        for chunk in self.stream:
            self._given += len(chunk.text)
            if chunk.index < have and chunk.token is not None:
                continue  # it was put back
            text = chunk.text[len(chunk.text) - max(0, self._given - shown) :]
            shown += len(text)
            self.pending = self.pending[1:]
            new = self._with_odds(replace(chunk, text=text) if text != chunk.text else chunk)
            self.chunks.append(new)
            yield new, self._read(new)

    def finish(self) -> Sequence[ChatEvent]:
        """End the answer here and cache what it has run; returns the last events, if any."""
        self.usage = self.stream.usage
        rest = self._reader.cancel(self.usage) if self.finish_reason is None else []
        self.events += rest
        self.stream.keep()
        return rest

    def move(self, chunks: Sequence[Chunk], then: Sequence[Token] = ()) -> None:
        """Stand after these chunks, which begin with some of this answer's or continue them, and
        then after other tokens: the stream goes back, and runs what it has not run.

        Raises ``FilterError`` or ``StateError`` if the tokens are not allowed there; then nothing
        has changed.
        """
        try:
            kept = self._go(_tokens(chunks), then)
        except MlxgenError:
            self._go(self.tokens, self.pending)
            raise
        self.pending = list(then)
        self._known = dict(enumerate(self.chunks)) if then else {}
        self.chunks = _trimmed(chunks, kept, self._given)
        self.events = [each for _, events in self.readings(self.chunks) for each in events]

    def readings(
        self, chunks: Sequence[Chunk]
    ) -> Iterator[tuple[Chunk | None, Sequence[ChatEvent]]]:
        """The events of each chunk of a version of this answer, and at last those of its end."""
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

    def close(self) -> None:
        """Free what it holds."""
        self.stream.close()

    @property
    def last(self) -> Chunk | None:
        """The last chunk."""
        return self.chunks[-1] if self.chunks else None

    @property
    def tokens(self) -> list[Token]:
        """Its tokens, the end included."""
        return _tokens(self.chunks)

    @property
    def text(self) -> str:
        """The answer so far, without the reasoning."""
        return "".join(event.text for event in self.events if isinstance(event, Text))

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(event.text for event in self.events if isinstance(event, Reasoning))

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; ``None`` if it was stopped."""
        return self.last.finish_reason if self.last is not None else None

    @property
    def used(self) -> int:
        """How many tokens of the context it takes, with its prompt."""
        return self.usage.prompt_tokens + len(self.tokens)

    @property
    def fills_context(self) -> bool:
        """Whether there is no room for another token."""
        return self.max_context is not None and self.used >= self.max_context

    def _read(self, chunk: Chunk) -> Sequence[ChatEvent]:
        events, _ = self._reader.push(chunk, self.stream.usage)
        self.events += events
        return events

    def _go(self, tokens: Sequence[Token], then: Sequence[Token]) -> int:
        """Have the stream stand after these tokens, of which it has given as many as this returns,
        and then after others, which it gives again: even those that stood there before."""
        common = in_common([*self.stream.tokens], [*tokens])
        self.stream.rewind(to=common)
        self._given = len(self.stream.text)
        if others := [*tokens[common:], *then]:
            self.stream.append(others)
        return common

    def _with_odds(self, chunk: Chunk) -> Chunk:
        """A chunk of a token that somebody chose, with its odds where those are known."""
        known = self._known.get(chunk.index)
        if known is None or chunk.logprob is not None or chunk.token is None:
            return chunk
        self._known = {}  # what followed it has other odds now
        return replace(chunk, logprob=dict(known.top).get(chunk.token), top=known.top)


def _tokens(chunks: Sequence[Chunk]) -> list[Token]:
    return [chunk.token for chunk in chunks if chunk.token is not None]


def _trimmed(chunks: Sequence[Chunk], kept: int, length: int) -> list[Chunk]:
    """Chunks without the end of the text of the first ``kept``, if a stop or a ban can claim it
    again; they keep ``length`` characters."""
    found = []
    for i, chunk in enumerate(chunks):
        text = chunk.text[:length] if i < kept else chunk.text
        length -= len(text)
        found.append(replace(chunk, text=text) if text != chunk.text else chunk)
    return found


def _asked(plan: Plan, conversation: Conversation) -> Any:
    """What an answer depends on."""
    return plan.ids, conversation.options, conversation.forms


def _chat(conversation: Conversation) -> Chat:
    return Chat(
        conversation.messages,
        template=conversation.template,
        allow_control_tokens=conversation.allow_control_tokens,
    )
