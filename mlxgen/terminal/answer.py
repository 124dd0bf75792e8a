"""The model's answer to a conversation: it streams, can be stopped, and runs only what is new.

Owns the way from a conversation to a stream and back: the plan of the turn, and what goes into the
prefix cache. Must never know a terminal. Invariant: the concatenated events of an answer are the
model's text; and what an answer has run is in the prefix cache once it is finished, whether it
ended or was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from ..chat.answer import AnswerReader
from ..chat.calls.use import Form
from ..chat.dialect import Dialect
from ..chat.events import ChatEvent, Reasoning, Text
from ..chat.template.format import Chat
from ..chat.turn import Turn, plan_turn
from ..engine import Chunk, FinishReason, Options, Prompt, Stream, Usage
from ..errors import OptionError, PromptError
from ..model import LanguageModel
from .conversation import Conversation


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

    @contextmanager
    def begin(self, conversation: Conversation) -> Iterator[Answer]:
        """A context in which the answer to the waiting message runs.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` before anything runs.
        """
        lm, spec = self.lm, conversation.form
        form = None if spec is None else Form("filters", spec, "json" in conversation.forms)
        plan = plan_turn(Turn(chat=_chat(conversation), form=form), self._dialect)
        self._check_room(len(plan.ids))
        options = conversation.options
        if plan.spec is not None:
            options["filters"] = [plan.spec]
        with lm.stream(Prompt(plan.ids, plan.opens_text, plan.thinking), **options) as stream:
            yield Answer(stream, AnswerReader(plan.reading), lm.max_context, stream.usage)

    def _check_room(self, tokens: int) -> None:
        if self.lm.max_context is not None and tokens >= self.lm.max_context:
            raise PromptError(
                f"with this message the conversation has {tokens} tokens, but the context of "
                f"{self.lm.name} holds {self.lm.max_context}, including the answer; take back "
                "exchanges with /undo, start over with /clear, or write less"
            )


@dataclass(slots=True)
class Answer:
    """One answer: an iterator over the events of each token.

    ``finish`` returns the last events; after it, ``text``, ``reasoning`` and the rest no longer
    change. Without it, as after an error, nothing of the answer goes into the prefix cache.
    """

    stream: Stream
    reader: AnswerReader
    max_context: int | None
    usage: Usage  # up to the end
    last: Chunk | None = None
    events: list[ChatEvent] = field(default_factory=list)

    def __iter__(self) -> Iterator[Sequence[ChatEvent]]:
        for chunk in self.stream:
            self.last = chunk
            events, _ = self.reader.push(chunk, self.stream.usage)
            self.events += events
            yield events

    def finish(self) -> Sequence[ChatEvent]:
        """End the answer here and cache what it has run; returns the last events, if any."""
        self.usage = self.stream.usage
        rest = self.reader.cancel(self.usage) if self.finish_reason is None else []
        self.events += rest
        self.stream.keep()
        return rest

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
    def fills_context(self) -> bool:
        """Whether there is no room for another token."""
        used = self.usage.prompt_tokens + self.usage.completion_tokens
        return self.max_context is not None and used >= self.max_context


def _chat(conversation: Conversation) -> Chat:
    return Chat(
        conversation.messages,
        template=conversation.template,
        allow_control_tokens=conversation.allow_control_tokens,
    )
