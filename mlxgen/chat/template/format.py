"""Renders chat messages to tokens with the tokenizer's own template: a Jinja template or a program.

Also handles the template variables that a caller may set, and a last message that is left open.

Two guarantees hold whatever the template does. No text of a message, a name, a tool or a variable
becomes a control token, unless that was allowed: anything that looks like one, or like the
beginning or the end of one, is broken up before the rendering and put together again after it. And
nothing is lost silently: a trial rendering has a mark in every text; anything that it lacks or that
the template refuses is told in another way, or else reported as left out.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import filterfalse
from typing import Any, NamedTuple, TypeAlias

from ...errors import MlxgenError, OptionError, PromptError
from ...images import ImageProcessor
from ...tokens import Token, Vocabulary
from .control_tokens import ControlTokens
from .pictures import Pictures
from .sandbox import SECONDS, SandboxedTemplate
from .telling import LETTERS, Marked, Step, Verdict, WriteCalls, in_order, told_in, ways
from .values import (
    REASONING,
    Values,
    for_templates,
    mapped,
    plain_messages,
    plain_tools,
    plain_variable,
    with_spelled_arguments,
    with_tools,
)

Messages: TypeAlias = Sequence[Mapping[str, Any]]

SWITCHES = ("enable_thinking", "thinking")  # the two names of one variable
_TOOLS = re.compile(r".*(?:tools|functions|tool_list|tool_[a-z]+s)")
"""Names under which templates take tools, besides ``tools``."""


class Told(NamedTuple):
    """The tokens of a chat, and the places of the chat that they leave out."""

    tokens: list[Token]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chat:
    """Chat messages, and the other inputs of the chat template.

    ``tools`` are function descriptions as OpenAI's clients send them. ``template`` sets further
    variables that the template uses, such as ``{"enable_thinking": False}``, to plain JSON values.
    ``continue_final_message`` leaves the last message open, so that the text continues it, or its
    reasoning if it has reasoning and no content. ``add_generation_prompt=False`` starts no answer
    after the messages.

    A part ``{"type": "image", "image": x}`` of a message's content is an image: a path, the bytes
    of a file, a Pillow image, or a ``data:`` address; OpenAI's ``image_url`` is taken as well.

    Text in messages never becomes a control token: ``<|im_end|>`` in it is spelled out and ends
    nothing. ``allow_control_tokens`` permits control tokens, for messages that only you wrote.
    """

    messages: Messages
    tools: Sequence[Any] | None = None
    template: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    allow_control_tokens: bool = False
    add_generation_prompt: bool = True

    def tokens(self, vocabulary: Vocabulary, images: ImageProcessor | None = None) -> list[Token]:
        """The tokens of the rendered chat, at least one; ``images`` reads those in the messages.

        Anything that the template refuses or leaves out is told in the closest way that it accepts.
        PromptError, with the template's reason, if there is no such way, if it renders nothing, or
        if it takes too long; OptionError for a wrong ``template`` variable or image, or an image
        for a model that takes none.
        """
        return self.told(vocabulary, images).tokens

    def told(
        self,
        vocabulary: Vocabulary,
        images: ImageProcessor | None = None,
        write: WriteCalls | None = None,
    ) -> Told:
        """The tokens, and what they leave out; ``write`` writes calls as the model does, for a
        template that renders none."""
        return ChatFormat.of(vocabulary, tools=bool(self.tools)).told(self, images, write)


class ChatFormat:
    """The chat format of a vocabulary; ``of`` finds it. Any thread may use it."""

    def __init__(self, vocabulary: Vocabulary, template: SandboxedTemplate | None) -> None:
        self._vocabulary = vocabulary
        self._wrapper: Any = vocabulary.tokenizer
        self._tokenizer: Any = vocabulary.tokenizer._tokenizer
        self._template = template
        self._control = ControlTokens(vocabulary, None if template is None else template.literals)

    @classmethod
    def of(cls, vocabulary: Vocabulary, *, tools: bool = False) -> ChatFormat:
        """The format for chats with or without tools, made once. PromptError if there is none."""
        from transformers import PreTrainedTokenizerBase

        wrapper: Any = vocabulary.tokenizer
        if not wrapper.has_chat_template:
            raise PromptError("this model has no chat template; pass the prompt as raw text")
        own = getattr(type(wrapper._tokenizer), "apply_chat_template", None)
        is_program = own is not PreTrainedTokenizerBase.apply_chat_template
        if wrapper._chat_template is not None or is_program:
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
    def variables(self) -> frozenset[str]:
        """The variables that may be set."""
        if self._template is None:
            return frozenset({"enable_thinking"})  # what mlx-lm passes to programs
        return self._template.variables - {*_OWN, *self._tokenizer.special_tokens_map}

    @property
    def shows_tools(self) -> bool:
        """Whether the template shows tools to the model; assumed of a program."""
        template = self._template
        return template is None or self._tools_name is not None or "tools" in template.keys

    @cached_property
    def _tools_name(self) -> str | None:
        """The variable under which the template takes tools."""
        known = () if self._template is None else sorted(self._template.variables)
        if "tools" in known:
            return "tools"
        likely = [name for name in known if _TOOLS.fullmatch(name)]
        return next((n for n in ("xml_tools", "json_tools", *likely) if n in likely), None)

    @property
    def words(self) -> frozenset[str]:
        """The words in the template, such as the values that it compares a variable with."""
        return frozenset() if self._template is None else self._template.keys

    def check(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The variables as the template takes them. OptionError for one that it does not use.

        The switch for thinking has two names, and is passed under the one that the template uses.
        If it uses neither, the switch may only say what the model does anyway.
        """
        switches = self.variables.intersection(SWITCHES)
        checked: dict[str, Any] = {}
        for name, value in given.items():
            known = name
            if name in SWITCHES and name not in switches and isinstance(value, bool):
                if not switches and value == self._wrapper.has_thinking:
                    continue
                known = next((other for other in switches if other not in given), name)
            if known not in self.variables:
                names = ", ".join(sorted(self.variables)) or "there are none"
                raise OptionError(
                    "template",
                    f"the model's chat template does not use {str(name)[:40]}, or it may not be "
                    f"set; leave it out, or set one of these: {names}",
                )
            checked[known] = plain_variable(value, name)
        return checked

    # ---- tokens ----

    def told(self, chat: Chat, images: ImageProcessor | None, write: WriteCalls | None) -> Told:
        """The tokens of a chat, told in the closest way that leaves nothing out, or else in the way
        that leaves out least. PromptError, with the template's reason, if it refuses every way."""
        if not chat.messages or not all(isinstance(each, Mapping) for each in chat.messages):
            raise PromptError(
                "expected a list of chat messages such as {'role': 'user', 'content': 'Hello'}"
            )
        pictures = Pictures.of(in_order(chat.messages), images)
        chat = replace(
            chat,
            messages=self._without_thoughts(plain_messages(pictures.messages), chat),
            tools=plain_tools(chat.tools),
            template=self.check(chat.template),
        )
        module = type(self._tokenizer).__module__
        if self._template is None and module.endswith("tokenization_mistral_common"):
            # This tokenizer never reads control tokens in text.
            chat = replace(chat, messages=for_templates(chat.messages))
            return Told([int(token) for token in self._run(chat, tokenize=True)])
        used = {*json.dumps((chat.messages, chat.tools, chat.template), ensure_ascii=False)}
        free = filterfalse(used.__contains__, map(chr, LETTERS))
        seams = "" if chat.allow_control_tokens else next(free) + next(free)
        end = next(free) if chat.continue_final_message else ""
        wanted, place = len(pictures.sources), ""
        if images is not None and wanted:
            place = self._vocabulary.piece(images.token).decode()
        marked = Marked.of(chat.messages, chat.tools, free)
        until = time.thread_time() + SECONDS
        refused: PromptError | None = None
        best: tuple[tuple[int, int], Sequence[Step], Verdict] | None = None
        seen: list[Messages] = []
        for way in ways(chat.messages, write):
            messages = told_in(way, marked.messages)
            if messages in seen:
                continue
            seen.append(messages)
            try:
                text = self._text(replace(chat, messages=messages, tools=marked.tools), end)
            except PromptError as error:
                refused = refused or error
            else:
                verdict = marked.judge(text, messages)
                images_lost = abs(text.count(place) - wanted) if place else 0
                faults = len({*verdict.lost} - {"tools"}) + images_lost, verdict.misplaced
                if best is None or faults < best[0]:
                    best = faults, way, verdict
                if not any(faults):
                    break
            if time.thread_time() > until:
                break
        if best is None:
            assert refused is not None
            raise refused
        _, way, verdict = best
        if seams:  # put two marks around each character at which a control token could form

            def broken(text: str) -> str:
                for at in reversed(self._control.seams(text)):
                    text = f"{text[:at]}{seams[0]}{text[at]}{seams[1]}{text[at + 1 :]}"
                return text

            given = mapped((chat.messages, chat.tools, chat.template), broken)
            chat = replace(chat, messages=given[0], tools=given[1], template=given[2])
        text = self._text(replace(chat, messages=told_in(way, chat.messages)), end)
        tokens = self._control.encode(text, seams)
        if not tokens:
            raise PromptError(
                "the chat template renders nothing for these messages; pass others, or raw text"
            )
        if images is not None and place:
            if tokens.count(images.token) != wanted:
                raise PromptError(
                    f"the chat template has places for {tokens.count(images.token)} of {wanted} "
                    "images; put them into messages of the user"
                )
            tokens = pictures.put_into(tokens, images, lambda text: self._control.encode(text, ""))
        return Told(tokens, verdict.lost)

    def _without_thoughts(self, messages: list[Values], chat: Chat) -> list[Values]:
        """Messages in which an answer that a client sent back verbatim has its thinking split from
        its text, as the template itself would: it does not see marks that are broken up."""
        template = self._template
        if template is None or chat.allow_control_tokens:
            return messages
        for start, end in {(self._wrapper.think_start, self._wrapper.think_end), _THINK}:
            takes = not template.keys.isdisjoint(REASONING)
            if not start or not end or not (takes or end in template.literals):
                continue
            for i, message in enumerate(messages):
                content = message.get("content")
                if message.get("role") != "assistant" or not isinstance(content, str):
                    continue
                if any(message.get(name) for name in REASONING):
                    continue
                head, found, rest = content.partition(end)
                before, opened, thoughts = head.rpartition(start)
                if before.strip() or not (found or opened):
                    continue
                if found:
                    changed = {"content": rest.lstrip("\n") if takes else rest}
                elif i == len(messages) - 1 and chat.continue_final_message and takes:
                    changed = {"content": ""}  # it was still thinking
                else:
                    continue
                messages[i] = {**message, **changed, "reasoning_content": thoughts.strip("\n")}
        return messages

    # ---- rendering ----

    def _text(self, chat: Chat, end: str) -> str:
        """Plain messages, rendered by the template or the program; ``end`` is a letter to mark the
        end of a message that is left open. PromptError if they raise anything."""
        chat = replace(chat, messages=for_templates(chat.messages))
        if self._template is None:
            text: str = self._run(chat, tokenize=False)
            return text
        # The space shows whether the template trims the end of the message.
        messages = _left_open(chat.messages, f"{end} ") if end else chat.messages
        values: Values = dict(self._tokenizer.special_tokens_map)
        values |= {"enable_thinking": self._wrapper.has_thinking, "documents": None}
        values |= chat.template
        if chat.tools and self._tools_name is not None:
            values.setdefault(self._tools_name, chat.tools)
        elif chat.tools and "tools" in self._template.keys:
            messages = with_tools(messages, chat.tools)
        values |= {
            "messages": messages,
            "tools": chat.tools,
            "add_generation_prompt": chat.add_generation_prompt and not end,
        }
        try:
            text = self._template.render(values)
        except Exception as error:
            raise _refused(error) from error
        if not end:
            return text
        kept, found, rest = text.rpartition(end)
        if not found:
            raise PromptError(
                "continue_final_message: the chat template leaves out the last message"
            )
        return kept if rest.startswith(" ") else kept.rstrip()

    def _run(self, chat: Chat, *, tokenize: bool) -> Any:
        """Let the program render; it may want the arguments of calls as text."""
        render = partial(
            self._wrapper.apply_chat_template,
            tools=chat.tools,
            add_generation_prompt=chat.add_generation_prompt and not chat.continue_final_message,
            continue_final_message=chat.continue_final_message,
            tokenize=tokenize,
            **chat.template,
        )
        try:
            try:
                return render(chat.messages)
            except TypeError:
                return render(with_spelled_arguments(chat.messages))
        except Exception as error:
            raise _refused(error) from error


_THINK = ("<think>", "</think>")
_OWN = (
    *("self", "messages", "tools"),
    *("add_generation_prompt", "continue_final_message", "allow_control_tokens"),
)
"""Names that callers may not set."""


def _refused(error: Exception) -> MlxgenError:
    """The error to raise for an exception of a chat template, which may raise anything."""
    if isinstance(error, MlxgenError):
        return error
    reason = str(error) or type(error).__name__
    return PromptError(f"the chat template refuses these messages: {reason}")


def _left_open(messages: Messages, tag: str) -> Messages:
    """The messages, with a tag at the end of the last one's text, or of its reasoning if it has no
    text."""
    last = dict(messages[-1])
    content = last.get("content")
    thoughts = {name: last[name] + tag for name in REASONING if last.get(name)}
    if isinstance(content, str) and (content or not thoughts):
        last["content"] = content + tag
    elif thoughts and not content:
        last |= thoughts
    else:
        parts = content if isinstance(content, list) else []
        at = max((i for i, part in enumerate(parts) if "text" in part), default=None)
        if at is None:
            raise PromptError("continue_final_message: the last message has no text")
        part = {**parts[at], "text": parts[at]["text"] + tag}
        last["content"] = [*parts[:at], part, *parts[at + 1 :]]
    return [*messages[:-1], last]
