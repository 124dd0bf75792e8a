"""The model's answer to a conversation: it streams, can be stopped, and costs only what is new.

Owns the way from a conversation to a stream and back: rendering, where the reasoning is, forms
that begin behind it, and what the prefix cache gets. Must never know a terminal. Invariant: the
spans of an answer, put together, are the model's text; and what an answer has run is in the
prefix cache when it is finished, whether it ended or was stopped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import TracebackType

from ..chat.format import Chat, Rendered
from ..engine import Chunk, FinishReason, Options, Stream, Usage
from ..errors import OptionError, PromptError
from ..filters import Specification
from ..model import LanguageModel
from ..server.wire.served_model import ServedModel
from ..server.wire.splitter import Span, Splitter, Thinking
from ..server.wire.thinking import after_thinking, thinking_of
from ..tokens import Token
from .conversation import Conversation


class Answerer:
    """Answers conversations with one model; the calling thread is the one that generates."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self._served = ServedModel.of(lm)

    def check(self, conversation: Conversation) -> None:
        """Raise ``OptionError`` or ``GrammarError`` for settings and forms that this model cannot
        follow, which would only be noticed at the next answer."""
        Options.of(conversation.options | {"close_json": None}).check_vocabulary(self.lm.vocab_size)
        if conversation.form is not None:
            conversation.form.bind(self.lm.tokenizer, self.lm.vocab_size)
            self._check_form()

    def begin(self, conversation: Conversation) -> Answer:
        """Start the answer to the message that waits.

        Raises ``OptionError``, ``PromptError`` or ``GrammarError`` before anything runs.
        """
        lm, vocabulary = self.lm, self.lm.vocabulary
        chat = Rendered.of(
            Chat(
                conversation.messages,
                template=conversation.template,
                allow_control_tokens=conversation.allow_control_tokens,
            ),
            vocabulary,
        )
        self._check_room(len(chat.ids))
        thinking = thinking_of(chat.ids, self._served, None)
        options = conversation.options
        if conversation.form is not None:
            self._check_form()
            options["filters"] = [after_thinking(conversation.form, thinking, self._served)]
        stream = lm.stream(chat, **options)
        return Answer(
            stream,
            self._splitter(thinking, conversation.form, json="json" in conversation.forms),
            places=[] if lm.prefix_cache.any_length else self._places(conversation, chat.ids),
            max_context=lm.max_context,
        )

    def _check_form(self) -> None:
        if self._served.marks.initial is not None:
            raise OptionError(
                "filters", "this model writes headers before its text, and takes no form"
            )

    def _check_room(self, tokens: int) -> None:
        if self.lm.max_context is not None and tokens >= self.lm.max_context:
            raise PromptError(
                f"with this message the conversation has {tokens} tokens, and the context of "
                f"{self.lm.name} holds {self.lm.max_context}, the answer included: take exchanges "
                "back with /undo, begin anew with /clear, or write less"
            )

    def _splitter(self, thinking: Thinking, form: Specification | None, *, json: bool) -> Splitter:
        return Splitter(self._served.marks, thinking=thinking, trim=form is None or json)

    def _places(self, conversation: Conversation, prompt: Sequence[Token]) -> list[int]:
        """Where later prompts may part from this one: before the last message, behind it (an
        answer may be told differently later, without its reasoning), and at the end."""
        messages, places = conversation.messages, {len(prompt) - 1}
        for said in (messages[:-1], messages):
            with contextlib.suppress(PromptError):  # a template may want more messages than these
                begun = Chat(
                    said,
                    template=conversation.template,
                    allow_control_tokens=conversation.allow_control_tokens,
                    add_generation_prompt=False,
                )
                places.add(_in_common(begun.tokens(self.lm.vocabulary), prompt))
        return sorted(places)


class Answer:
    """One answer: a context manager, and an iterator over the spans that came with each token.

    ``finish`` gives the last spans; after it ``text``, ``reasoning`` and the rest stay as they
    are. Without it, on an error, nothing is kept.
    """

    def __init__(
        self, stream: Stream, splitter: Splitter, *, places: Sequence[int], max_context: int | None
    ) -> None:
        self._stream = stream
        self._splitter = splitter
        self._places = places
        self._max_context = max_context
        self._spans: list[Span] = []
        self._usage = stream.usage
        self.last: Chunk | None = None
        self.drafted = 0  # tokens of the answer that a draft had proposed

    def __enter__(self) -> Answer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stream.close()

    def __iter__(self) -> Iterator[list[Span]]:
        for place in self._places:
            self._stream.keep(place)
        for chunk in self._stream:
            self.last = chunk
            self.drafted += chunk.from_draft
            yield self._shown(self._splitter.push(chunk.text))

    def finish(self) -> list[Span]:
        """End the answer here, and keep what it has run; returns the spans that were held."""
        self._usage = self._stream.usage
        rest = self._shown(self._splitter.flush(cut=self.finish_reason != "stop"))
        self._stream.keep()
        return rest

    @property
    def text(self) -> str:
        """The answer so far, without the reasoning."""
        return "".join(span.text for span in self._spans if span.kind == "content")

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(span.text for span in self._spans if span.kind == "reasoning")

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why it ended; ``None`` for one that was stopped."""
        return self.last.finish_reason if self.last is not None else None

    @property
    def usage(self) -> Usage:
        """Tokens and seconds until it was finished."""
        return self._usage

    @property
    def fills_context(self) -> bool:
        """Whether there is no room for another token."""
        used = self._usage.prompt_tokens + self._usage.completion_tokens
        return self._max_context is not None and used >= self._max_context

    def _shown(self, spans: list[Span]) -> list[Span]:
        self._spans += spans
        return spans


def _in_common(first: Sequence[Token], second: Sequence[Token]) -> int:
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count
