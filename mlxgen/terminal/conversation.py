"""A conversation: its messages, and the settings for the next answer.

Owns the exchanges, the system message, the settings and the forms that answers must have, how
they are taken back, their JSON, and the file that keeps the last conversation for ``--resume``.
Must never know a model or a terminal. A conversation is a value: what is tried on another one
leaves it as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ..engine import Options
from ..errors import OptionError, PromptError, StateError
from ..filters import AllOf, JsonSchema, Lark, Regex, Specification
from ..options.table import OPTIONS, checked, unknown
from .files import read_json, replaced

# Options that /set does not take, and what to do instead.
_ELSEWHERE = {
    "filters": "use /json, /regex or /lark",
    "hooks": "only a program can pass hooks",
    "prefix": "only a program can pass tokens; say in the message how to begin",
    "allow_retract": "a chat cannot delete what it has shown; leave it out",
    "hold_tokens": "a chat shows each token at once; leave it out",
    "max_resample": "only a program can pass hooks",
    "prediction": "only a program can pass the expected text",
    "heal": "an answer begins where a new message does; leave it out",
    "stop_in_reasoning": "stops end the answer only; leave it out",
    "stop_tokens": "use stop, with the text of the tokens",
    "top_logprobs": "a chat always keeps the likeliest tokens; use /tokens",
    "top_candidates": "a chat shows the model's own probabilities; use /tokens",
    "prompt_logprobs": "a chat shows the probabilities of answers only; use /tokens",
}
SETTABLE = tuple(name for name in OPTIONS if name not in _ELSEWHERE)
FORMS: Mapping[str, Callable[[Any], Specification]] = {
    "json": partial(JsonSchema, closed=True),
    "regex": Regex,
    "lark": Lark,
}
_PARTS = ("settings", "forms", "template")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and its answer; ``reasoning`` is what the model thought before it."""

    message: str
    answer: str
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """See the module; every change gives another one.

    - ``waiting``: the message that is to be answered next.
    - ``settings``: the options of ``LanguageModel.stream`` that were set; by default an answer may
      fill the context. ``defaults``: the model's values for options that are not set.
    - ``forms``: what answers must match (see ``FORMS``): a JSON schema, a regular expression, a
      grammar; by kind.
    - ``template``: further variables of the chat template; ``allow_control_tokens`` as in ``Chat``.

    ``defaults`` and ``allow_control_tokens`` are not saved with the conversation.
    """

    exchanges: tuple[Exchange, ...] = ()
    waiting: str | None = None
    system: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    allow_control_tokens: bool = False

    # ---- messages ----

    @property
    def messages(self) -> list[dict[str, str]]:
        """All chat messages, including the waiting one."""
        said = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in self.exchanges:
            said.append({"role": "user", "content": exchange.message})
            answer = {"role": "assistant", "content": exchange.answer}
            if exchange.reasoning:
                answer["reasoning_content"] = exchange.reasoning
            said.append(answer)
        if self.waiting is not None:
            said.append({"role": "user", "content": self.waiting})
        return said

    @property
    def last(self) -> Exchange:
        """The last exchange; raises ``StateError`` if there is none."""
        if not self.exchanges:
            raise StateError("there are no messages yet; write one")
        return self.exchanges[-1]

    def with_system(self, text: str | None) -> Conversation:
        """Another system message, or none."""
        return replace(self, system=None if text is None else _checked(text, "system message"))

    def ask(self, message: str) -> Conversation:
        """A message waits for its answer."""
        return replace(self, waiting=_checked(message, "message"))

    def again(self, message: str | None = None) -> Conversation:
        """The last message, or this one in its place, waits for another answer."""
        earlier, last = self.undone()
        return earlier.ask(last.message if message is None else message)

    def answered(self, answer: str, reasoning: str = "") -> Conversation:
        """The answer, or as much as there is of it, to the waiting message."""
        assert self.waiting is not None
        exchange = Exchange(self.waiting, answer, reasoning)
        return replace(self, exchanges=(*self.exchanges, exchange), waiting=None)

    def undone(self) -> tuple[Conversation, Exchange]:
        """What is left without the last exchange, and that; raises ``StateError`` without any."""
        last = self.last
        return replace(self, exchanges=self.exchanges[:-1]), last

    def without(self, count: int) -> Conversation:
        """Without the oldest exchanges."""
        if not 1 <= count <= len(self.exchanges):
            raise StateError(
                f"expected 1 to {len(self.exchanges)} exchanges to drop, got {count}"
                if self.exchanges
                else "there are no exchanges to drop; write a message"
            )
        return replace(self, exchanges=self.exchanges[count:])

    # ---- settings and forms ----

    @property
    def form(self) -> Specification | None:
        """The specification of all forms together."""
        made = _specifications(self.forms)
        return None if not made else made[0] if len(made) == 1 else AllOf(*made)

    @property
    def options(self) -> dict[str, Any]:
        """The options for ``LanguageModel.stream``, without ``filters``."""
        return {"max_tokens": None, "loops": "take back", **self.defaults, **self.settings}

    def set(self, name: str, value: Any) -> Conversation:
        """An option; ``None`` is its default. Raises ``OptionError`` for an invalid one."""
        return self.configured({**self.settings, name.replace("-", "_"): value}, self.forms)

    def require(self, kind: str, source: Any) -> Conversation:
        """A form of answers; ``None`` lifts it.

        ``close_json`` needs a form, so it is reset with the last one.
        """
        forms = _given({**self.forms, kind: source})
        lifted = {} if forms else {"close_json": None}
        return self.configured({**self.settings, **lifted}, forms)

    def configured(self, settings: Mapping[str, Any], forms: Mapping[str, Any]) -> Conversation:
        """Settings and forms that are valid together; ``None`` is as if it was not there."""
        settings = {name: _with_ids(name, value) for name, value in settings.items()}
        for name in settings:
            if name in _ELSEWHERE:
                raise OptionError(name, _ELSEWHERE[name])
            if name not in SETTABLE:
                raise unknown(name, SETTABLE, "/set lists the options")
        Options.of({"max_tokens": None, **settings, "filters": _specifications(forms)})
        return replace(self, settings=_given(settings), forms=_given(forms))

    def values(self) -> dict[str, Any]:
        """Every option that can be set, with its value in force."""
        values = checked(self.options)
        return {name: values[name] for name in SETTABLE}

    # ---- JSON ----

    def as_text(self) -> str:
        """The conversation as JSON, for a file."""
        data = {"messages": self.messages} | {name: dict(getattr(self, name)) for name in _PARTS}
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def of_json(cls, data: Any) -> Conversation:
        """What ``as_text`` gave, read; ``OptionError`` names a part that is wrong."""
        if not isinstance(data, Mapping) or "messages" not in data:
            raise OptionError(
                "messages", "expected a file that /save has written, got one without messages"
            )
        parts = {name: data.get(name, {}) for name in _PARTS}
        for key in data.keys() - {"messages", *_PARTS}:
            known = ", ".join(("messages", *_PARTS))
            raise OptionError(key, f"a conversation has no such part; known are {known}")
        for key, value in parts.items():
            if not isinstance(value, Mapping):
                raise OptionError(key, f"expected a JSON object, got {type(value).__name__}")
        for kind in parts["forms"].keys() - FORMS.keys():
            raise OptionError(f"forms.{kind}", f"expected one of {', '.join(FORMS)}")
        found = cls(template=parts["template"])._saying(data["messages"])
        return found.configured(parts["settings"], parts["forms"])

    def _saying(self, messages: Any) -> Conversation:
        if not isinstance(messages, list):
            raise OptionError("messages", f"expected a list, got {type(messages).__name__}")
        found = self
        for i, message in enumerate(messages):
            role = message.get("role") if isinstance(message, Mapping) else None
            roles = ["user" if found.waiting is None else "assistant", *["system"] * (i == 0)]
            if role not in roles:
                expected = " or ".join(roles)
                raise OptionError(f"messages[{i}].role", f"expected {expected}, got {role!r}")
            content, reasoning = message.get("content"), message.get("reasoning_content")
            if not isinstance(content, str):
                got = type(content).__name__
                raise OptionError(f"messages[{i}].content", f"expected text, got {got}")
            if role == "system":
                found = found.with_system(content)
            elif role == "user":
                found = found.ask(content)
            else:
                found = found.answered(content, reasoning if isinstance(reasoning, str) else "")
        if found.waiting is not None:
            raise OptionError("messages", "the last message has no answer; leave it out")
        return found


def _checked(text: str, what: str) -> str:
    if not text.strip():
        raise PromptError(f"the {what} is empty; write some text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError(f"the {what} is not valid UTF-8 text")
    return text


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _specifications(forms: Mapping[str, Any]) -> list[Specification]:
    return [FORMS[kind](source) for kind, source in _given(forms).items()]


def _with_ids(name: str, value: Any) -> Any:
    """JSON has only text keys, but those of ``logit_bias`` are token ids."""
    if name == "logit_bias" and isinstance(value, Mapping):
        return {int(key) if str(key).isdigit() else key: bias for key, bias in value.items()}
    return value


# ---- the last conversation ----


def place() -> Path:
    """The file: ``mlxgen/last_chat.json`` in the folder for the state of programs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "mlxgen" / "last_chat.json"


def keep(conversation: Conversation) -> None:
    """Write a conversation there, readable by its person alone. That it cannot be written, as on a
    full disk, does not disturb the chat."""
    path = place()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replaced(path, conversation.as_text())


def resumed() -> Conversation:
    """The conversation that was kept; raises ``OptionError`` if there is none."""
    path = place()
    if not path.exists():
        raise OptionError("resume", "there is no chat to go on with; begin one with --chat")
    return Conversation.of_json(read_json("resume", str(path)))
