"""The model's answer to a conversation: it streams, can be stopped, and runs only what is new.

Owns the way from a conversation to a stream and back: the plan of the turn, and what goes into the
prefix cache. Must never know a terminal. Invariant: the concatenated events of an answer are the
model's text; and what an answer has run is in the prefix cache once it is finished, whether it
ended or was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from ..chat.answer import AnswerReader
from ..chat.calls.use import Form
from ..chat.dialect import Dialect
from ..chat.events import ChatEvent, Reasoning, Text
from ..chat.template.format import Chat
from ..chat.turn import Turn, plan_turn
from ..engine import Chunk, FinishReason, Options, Prompt, Stream, in_common
from ..errors import OptionError, PromptError
from ..model import LanguageModel
from ..tokens import Token
from .conversation import Conversation


class Answerer:
    """Answers conversations with one model, on the calling thread."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self._dialect = Dialect.of(lm.vocabulary)

    def check(self, conversation: Conversation) -> None:
        """Raise ``OptionError`` or ``GrammarError`` now for settings and forms that this model
        cannot follow, rather than at the next answer."""
        Options.of(conversation.options | {"close_json": None}).check_vocabulary(self.lm.vocab_size)
        if conversation.form is not None:
            conversation.form.bind(self.lm.tokenizer, self.lm.vocab_size)
            if not self._dialect.takes_forms:
                raise OptionError(
                    "filters",
                    "this model writes headers before its text, so it cannot follow a form; say "
                    "/json off, /regex off or /lark off",
                )

    @contextmanager
    def begin(self, conversation: Conversation) -> Iterator[Answer]:
        """A context in which the answer to the waiting message runs.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` before anything runs.
        """
        lm = self.lm
        plan = plan_turn(_turn(conversation), self._dialect)
        self._check_room(len(plan.ids))
        options = conversation.options
        if plan.spec is not None:
            options["filters"] = [plan.spec]
        places = [] if lm.prefix_cache.any_length else self._places(conversation, list(plan.ids))
        with lm.stream(Prompt(plan.ids, plan.opens_text), **options) as stream:
            yield Answer(
                stream, AnswerReader(plan.reading), places=places, max_context=lm.max_context
            )

    def _check_room(self, tokens: int) -> None:
        if self.lm.max_context is not None and tokens >= self.lm.max_context:
            raise PromptError(
                f"with this message the conversation has {tokens} tokens, but the context of "
                f"{self.lm.name} holds {self.lm.max_context}, including the answer; take back "
                "exchanges with /undo, start over with /clear, or write less"
            )

    def _places(self, conversation: Conversation, prompt: list[Token]) -> list[int]:
        """Where later prompts may differ from this one: before the last message, after it (its
        answer may be rendered without the reasoning later), and at the end."""
        messages, places = conversation.messages, {len(prompt) - 1}
        for said in (messages[:-1], messages):
            with suppress(PromptError):  # a template may need more messages
                begun = replace(_chat(conversation), messages=said, add_generation_prompt=False)
                places.add(in_common(begun.tokens(self.lm.vocabulary), prompt))
        return sorted(places)


class Answer:
    """One answer: an iterator over the events of each token.

    ``finish`` returns the last events; after it, ``text``, ``reasoning`` and the rest no longer
    change. Without it, as after an error, nothing goes into the prefix cache. ``usage`` has the
    tokens and seconds up to the end.
    """

    def __init__(
        self,
        stream: Stream,
        reader: AnswerReader,
        *,
        places: Sequence[int],
        max_context: int | None,
    ) -> None:
        self._stream = stream
        self._reader = reader
        self._places = places
        self._max_context = max_context
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.usage = stream.usage
        self.last: Chunk | None = None
        self.drafted = 0  # tokens of the answer that a draft had proposed

    def __iter__(self) -> Iterator[Sequence[ChatEvent]]:
        for place in self._places:
            self._stream.keep(place)
        for chunk in self._stream:
            self.last = chunk
            self.drafted += chunk.from_draft
            events, _ = self._reader.push(chunk, self._stream.usage)
            yield self._noted(events)

    def finish(self) -> Sequence[ChatEvent]:
        """End the answer here and cache what it has run; returns the last events, if any."""
        self.usage = self._stream.usage
        ended = self.finish_reason is not None
        rest = [] if ended else self._noted(self._reader.cancel(self.usage))
        self._stream.keep()
        return rest

    @property
    def text(self) -> str:
        """The answer so far, without the reasoning."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; ``None`` if it was stopped."""
        return self.last.finish_reason if self.last is not None else None

    @property
    def fills_context(self) -> bool:
        """Whether there is no room for another token."""
        used = self.usage.prompt_tokens + self.usage.completion_tokens
        return self._max_context is not None and used >= self._max_context

    def _noted(self, events: Sequence[ChatEvent]) -> Sequence[ChatEvent]:
        self._text += (event.text for event in events if isinstance(event, Text))
        self._reasoning += (event.text for event in events if isinstance(event, Reasoning))
        return events


def _turn(conversation: Conversation) -> Turn:
    form = conversation.form
    return Turn(
        chat=_chat(conversation),
        form=None if form is None else Form("filters", form, "json" in conversation.forms),
    )


def _chat(conversation: Conversation) -> Chat:
    return Chat(
        conversation.messages,
        template=conversation.template,
        allow_control_tokens=conversation.allow_control_tokens,
    )
