"""From chat messages to tokens, by the tokenizer's own means: a Jinja template, or a program.

Also the variables of the template that may be set, and the last message if it is left open.

Invariant: no text of a message, a name, a tool or a variable becomes a control token, whatever the
template does with it, unless that was allowed. A Jinja template's own text is tracked through the
rendering. If that is impossible (a program renders, or a template makes its tokens in a way that
cannot be tracked), anything in the messages that looks like a control token is broken up before
the rendering, and put together again after it.
"""

from __future__ import annotations

import inspect
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

from ...errors import MlxgenError, OptionError, PromptError
from ...images import ImageProcessor
from ...tokens import Token, Vocabulary
from .authored import Authored, own_of, plain
from .control_tokens import ControlTokens
from .pictures import Pictures
from .sandbox import Meter, RenderLimits, SandboxedTemplate
from .values import (
    REASONING,
    Values,
    all_text,
    mapped,
    plain_json,
    plain_messages,
    plain_tools,
    with_spelled_arguments,
    with_tools,
)

Messages: TypeAlias = Sequence[Mapping[str, Any]]

SWITCHES = ("enable_thinking", "thinking")  # the two names of one variable


class RefusedError(PromptError):
    """The chat template says no to messages, for a reason of its own."""


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages, and what else the chat template takes.

    ``tools`` are function descriptions as OpenAI's clients send them. ``template`` sets further
    variables that the template uses, such as ``{"enable_thinking": False}``, to plain JSON values.
    ``continue_final_message`` leaves the last message open, so that the text continues it, or its
    reasoning if it has reasoning and no content. ``add_generation_prompt=False`` starts no answer
    after the messages.

    A part ``{"type": "image", "image": x}`` of a message's content is an image: a path, the bytes
    of a file, a Pillow image, or a ``data:`` address; OpenAI's ``image_url`` is taken as well.

    Text of the messages never becomes a control token: ``<|im_end|>`` in it is spelled out and
    ends nothing. ``allow_control_tokens`` allows that, for messages that only you wrote.
    """

    messages: Messages
    tools: Sequence[Any] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    allow_control_tokens: bool = False
    add_generation_prompt: bool = True

    def tokens(
        self,
        vocabulary: Vocabulary,
        limits: RenderLimits | None = None,
        images: ImageProcessor | None = None,
    ) -> list[Token]:
        """The tokens of the rendered chat, at least one; ``images`` reads those in the messages.

        PromptError, with the template's reason, if it refuses the messages or renders nothing, or
        if it exceeds the ``limits``; OptionError if something is wrong with ``template`` or an
        image, or if the model takes none.
        """
        if not self.messages or not all(isinstance(each, Mapping) for each in self.messages):
            raise PromptError(
                "expected a list of chat messages such as {'role': 'user', 'content': 'Hello'}"
            )
        pictures = Pictures.of(self.messages)
        pictures.check(images)
        chat = replace(self, messages=pictures.messages)
        format = ChatFormat.of(vocabulary, tools=bool(self.tools))
        tokens = format.tokens(chat, limits=limits)
        if images is None or not pictures.sources:
            return tokens
        return format.with_images(tokens, pictures, images)


class ChatFormat:
    """The chat format of a vocabulary; ``of`` finds it. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary, template: SandboxedTemplate | None) -> None:
        self._wrapper: Any = vocabulary.tokenizer
        self._tokenizer: Any = vocabulary.tokenizer._tokenizer
        self._template = template
        self._control = ControlTokens(vocabulary, None if template is None else template.literals)

    @classmethod
    def of(cls, vocabulary: Vocabulary, *, tools: bool = False) -> ChatFormat:
        """The format for chats with or without tools, made once. PromptError if there is none."""
        wrapper: Any = vocabulary.tokenizer
        if not wrapper.has_chat_template:
            raise PromptError("this model has no chat template; pass the prompt as raw text")
        if wrapper._chat_template is not None or _renders_itself(wrapper._tokenizer):
            return vocabulary.derived("chat program", lambda: cls(vocabulary, None))
        try:
            source = wrapper._tokenizer.get_chat_template(None, [{}] if tools else None)
        except ValueError as error:
            raise PromptError(f"the model's chat template cannot be found: {error}") from error
        return vocabulary.derived(
            ("chat template", source), lambda: cls(vocabulary, SandboxedTemplate(source))
        )

    # ---- variables ----

    @cached_property
    def _taken(self) -> frozenset[str]:
        """Names that callers may not set."""
        from transformers import PreTrainedTokenizerBase

        names = {"self", "messages", "kwargs", *self._tokenizer.special_tokens_map}
        names |= {"allow_control_tokens"}  # mlxgen's own
        for method in (
            PreTrainedTokenizerBase.apply_chat_template,
            type(self._tokenizer).apply_chat_template,
        ):
            names |= set(inspect.signature(method).parameters) - set(SWITCHES)
        return frozenset(names if self._template is None else names | self._template.taken)

    @cached_property
    def variables(self) -> frozenset[str]:
        """The variables that may be set."""
        if self._template is not None:
            return self._template.variables - self._taken
        return frozenset({"enable_thinking"})  # what mlx-lm passes to programs

    @property
    def shows_tools(self) -> bool:
        """Whether tools are shown to the model; for a program, this is not known."""
        return self._template is None or "tools" in self._template.variables | self._template.keys

    @property
    def shows_calls(self) -> bool:
        """Whether earlier calls are shown to the model; for a program, this is not known."""
        return self._template is None or "tool_calls" in self._template.keys

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as the template takes them. OptionError if it does not use one of them.

        The switch for thinking has two names, and is passed under the one that the template uses.
        If it uses neither, the switch may only say what the model does anyway.
        """
        switches = self.variables.intersection(SWITCHES)
        checked: dict[str, Any] = {}
        for name, value in given.items():
            if not isinstance(name, str) or not name.isidentifier() or name in self._taken:
                raise OptionError(
                    "template", f"{str(name)[:40]!r} is not a variable to set; {self._known}"
                )
            known = name
            if name in SWITCHES and name not in switches and isinstance(value, bool):
                if not switches and value == self._wrapper.has_thinking:
                    continue
                known = next((other for other in switches if other not in given), name)
            if known not in self.variables:
                raise OptionError(
                    "template", f"the model's chat template does not use {name[:40]}; {self._known}"
                )
            checked[known] = plain_json(value, name, 0)
        return checked

    @property
    def _known(self) -> str:
        names = self.variables
        if self._template is not None:  # some look like variables but are set before they are used
            names = names - self._template.makeshift
        if not names:
            return "there are none for this model, so leave it out"
        return f"those of this model are {', '.join(sorted(names))}"

    # ---- tokens ----

    def tokens(self, chat: Chat, *, limits: RenderLimits | None) -> list[Token]:
        """The tokens of a chat. PromptError, with the template's reason, if it refuses."""
        chat = replace(chat, template=self.check(chat.template))
        try:
            chat = _plain(chat)
            if self._template is None and _tells_text_apart(self._tokenizer):
                return [int(token) for token in self._run(chat, limits, tokenize=True)]
            text = self._rendered(chat, limits)
        except MlxgenError:
            raise
        except Exception as error:  # templates are programs and may raise anything
            reason = f"{error}" or type(error).__name__
            refusal = f"the chat template refuses these messages: {reason}"
            raise RefusedError(refusal) from error
        own = None if chat.allow_control_tokens else own_of(text)
        tokens = self._control.encode(plain(text), own)
        if not tokens:
            raise PromptError(
                "the chat template renders nothing for these messages; pass others, or raw text"
            )
        return tokens

    def with_images(
        self, tokens: list[Token], pictures: Pictures, images: ImageProcessor
    ) -> list[Token]:
        """The tokens of a chat with its images in their places.

        PromptError if the template has not as many places; OptionError for a faulty image.
        """
        places, wanted = tokens.count(images.token), len(pictures.sources)
        if places != wanted:
            raise RefusedError(
                f"the chat template has places for {places} of {wanted} images; put them into "
                "messages of the user"
            )
        return pictures.put_into(tokens, images, lambda text: self._control.encode(text, None))

    def _rendered(self, chat: Chat, limits: RenderLimits | None) -> str:
        """The text of a plain chat, which knows what the template wrote."""
        if self._template is not None and self._is_tracked:
            return self._filled_in(chat, limits)
        given = (chat.messages, chat.tools, chat.template)
        if self._control.pattern.search(all_text(given)) is None:
            return Authored(self._render_plainly(chat, limits))
        return self._rendered_broken(chat, limits)

    @cached_property
    def _is_tracked(self) -> bool:
        """Whether trials recognise the template's own control tokens as its own."""
        for messages, tools in _TRIALS:
            try:
                text = self._filled_in(_plain(Chat(messages, tools)), RenderLimits(seconds=0.2))
            except PromptError:  # it takes too long
                return True
            except Exception:  # it does not take these roles
                continue
            whole = self._control.encode(plain(text), None)
            if self._control.encode(plain(text), own_of(text)) != whole:
                return False
        return True

    def _filled_in(self, chat: Chat, limits: RenderLimits | None) -> str:
        """The template's text, given the same values as by transformers and mlx-lm."""
        assert self._template is not None
        opened = _Opened.of(chat.messages, chat.continue_final_message)
        messages = opened.messages
        if chat.tools and "tools" not in self._template.variables and self.shows_tools:
            messages = with_tools(messages, chat.tools)
        values: Values = {
            name: Authored(value) if isinstance(value, str) else value
            for name, value in self._tokenizer.special_tokens_map.items()
        }
        values["enable_thinking"] = self._wrapper.has_thinking
        values |= chat.template
        values |= {
            "messages": messages,
            "tools": chat.tools,
            "documents": None,
            "add_generation_prompt": chat.add_generation_prompt and not opened.tag,
        }
        return opened.cut(self._template.render(values, limits))

    # ---- if the template's own text cannot be tracked ----

    def _rendered_broken(self, chat: Chat, limits: RenderLimits | None) -> str:
        """Renders with a mark inside every control token of the messages, and takes it out."""
        known = set(all_text((chat.messages, chat.tools, chat.template)))
        mark = next(chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in known)

        def broken(text: str) -> str:
            return mark.join(self._control.broken(text))

        changed = replace(
            chat,
            messages=mapped(chat.messages, broken),
            tools=mapped(chat.tools, broken),
            template=mapped(chat.template, broken),
        )
        pieces = self._render_plainly(changed, limits).split(mark)
        text, cuts = "".join(pieces), list(accumulate(map(len, pieces[:-1])))
        # The characters before and after a mark are not the template's.
        starts, ends = [0, *(cut + 1 for cut in cuts)], [*(cut - 1 for cut in cuts), len(text)]
        own = tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end)
        return Authored(text, own)

    def _render_plainly(self, chat: Chat, limits: RenderLimits | None) -> str:
        if self._template is not None:
            return plain(self._filled_in(chat, limits))
        text: str = self._run(chat, limits, tokenize=False)
        return text

    def _run(self, chat: Chat, limits: RenderLimits | None, *, tokenize: bool) -> Any:
        """Lets the program render."""
        with _watched(limits):
            try:
                return self._applied(chat, chat.messages, tokenize)
            except TypeError:  # it may want the arguments of calls as text
                messages = with_spelled_arguments(chat.messages)
                if messages == chat.messages:
                    raise
                return self._applied(chat, messages, tokenize)

    def _applied(self, chat: Chat, messages: Messages, tokenize: bool) -> Any:
        return self._wrapper.apply_chat_template(
            messages,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt and not chat.continue_final_message,
            continue_final_message=chat.continue_final_message,
            tokenize=tokenize,
            **chat.template,
        )


def _plain(chat: Chat) -> Chat:
    """A chat of plain values, which a template may do with what it wants."""
    return replace(chat, messages=plain_messages(chat.messages), tools=plain_tools(chat.tools))


class _Opened(NamedTuple):
    """Messages of which the last may be left open; the rendering is cut at the ``tag`` in it."""

    messages: Messages
    tag: str

    @classmethod
    def of(cls, messages: Messages, is_open: bool) -> _Opened:
        if not is_open:
            return cls(messages, "")
        # The space shows whether the template trims the end of the message.
        tag = f"CONTINUED{secrets.token_hex(8)} "
        last = dict(messages[-1])
        content = last.get("content")
        reasoning = [name for name in REASONING if last.get(name)]
        if isinstance(content, list):
            at = max((i for i, part in enumerate(content) if "text" in part), default=None)
            if at is None:
                raise PromptError("continue_final_message: the last message has no text")
            part = {**content[at], "text": content[at]["text"] + tag}
            last["content"] = [*content[:at], part, *content[at + 1 :]]
        elif not content and reasoning:  # it was still thinking
            last |= {name: last[name] + tag for name in reasoning}
        elif isinstance(content, str):
            last["content"] = content + tag
        else:
            raise PromptError("continue_final_message: the last message has no text")
        return cls([*messages[:-1], last], tag)

    def cut(self, text: str) -> str:
        """The text up to the end of the open message."""
        if not self.tag:
            return text
        bare = self.tag.strip()
        place = text.rfind(bare)
        if place < 0:
            raise PromptError(
                "continue_final_message: the chat template leaves out the last message"
            )
        kept = text[:place]
        return kept if text.startswith(self.tag, place) else kept.rstrip()


# ---- programs ----


def _renders_itself(tokenizer: Any) -> bool:
    """Whether a tokenizer has its own program instead of the one of transformers."""
    from transformers import PreTrainedTokenizerBase

    own: Any = getattr(type(tokenizer), "apply_chat_template", None)
    return own is not PreTrainedTokenizerBase.apply_chat_template


def _tells_text_apart(tokenizer: Any) -> bool:
    """Whether a tokenizer never reads control tokens in text, as that of mistral-common."""
    return type(tokenizer).__module__.endswith("tokenization_mistral_common")


@contextmanager
def _watched(limits: RenderLimits | None) -> Iterator[None]:
    """Holds the Python code of this thread to its limit of time."""
    if limits is None:
        yield
        return
    meter, before = Meter(limits), sys.getprofile()

    def look(frame: FrameType, event: str, argument: Any) -> None:
        meter.look()

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(before)


_CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
_TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "description": "d",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}
_TALK: list[Values] = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
_ASKED: list[Values] = [{"role": "user", "content": "c"}]
_CALLED: list[Values] = [
    *_ASKED,
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "abcdefghi", "name": "f", "content": "d"},
]
_TRIALS: tuple[tuple[list[Values], list[Values] | None], ...] = (
    (_ASKED, None),
    ([*_TALK, *_ASKED], None),
    ([{"role": "system", "content": "s"}, *_TALK, *_ASKED], None),
    (_CALLED, [_TOOL]),
)
"""Chats without forged control tokens."""
