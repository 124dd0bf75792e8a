"""A conversation: its messages, and the settings for the next answer.

Owns the exchanges, the system message, the settings and the forms that answers must have, how
they are taken back, their JSON, and the file that keeps the last conversation for ``--resume``.
Must never know a model or a terminal. Invariant: every message has an answer, except one that is
waiting; what cannot be done raises and changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
_KEYS = ("messages", "settings", "forms", "template")


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and its answer; ``reasoning`` is what the model thought before it."""

    message: str
    answer: str
    reasoning: str = ""


class _Waiting(NamedTuple):
    """A message without an answer, and the exchange that it replaces."""

    message: str
    instead: Exchange | None = None


class Conversation:
    """See the module. ``ask``, ``retry`` and ``edit`` leave a message waiting; ``answered`` or
    ``withdraw`` must follow.

    - ``settings``: the options of ``LanguageModel.stream`` that were set; by default an answer may
      fill the context. ``defaults``: the model's values for options that are not set.
    - ``forms``: what answers must match (see ``FORMS``): a JSON schema, a regular expression, a
      grammar; by kind.
    - ``template``: further variables of the chat template; ``allow_control_tokens`` as in ``Chat``.

    ``defaults`` and ``allow_control_tokens`` are not saved with the conversation.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        allow_control_tokens: bool = False,
    ) -> None:
        self.exchanges: list[Exchange] = []
        self.template: dict[str, Any] = dict(template or {})
        self.defaults: dict[str, Any] = dict(defaults or {})
        self.allow_control_tokens = allow_control_tokens
        self.settings: Mapping[str, Any] = {}
        self.forms: Mapping[str, Any] = {}
        self._waiting: _Waiting | None = None
        self.system = system

    # ---- messages ----

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = None if text is None else _checked(text, "system message")

    @property
    def messages(self) -> list[dict[str, str]]:
        """All chat messages, including the waiting one."""
        said = [] if self._system is None else [{"role": "system", "content": self._system}]
        for exchange in self.exchanges:
            said.append({"role": "user", "content": exchange.message})
            answer = {"role": "assistant", "content": exchange.answer}
            if exchange.reasoning:
                answer["reasoning_content"] = exchange.reasoning
            said.append(answer)
        if self._waiting is not None:
            said.append({"role": "user", "content": self._waiting.message})
        return said

    @property
    def last(self) -> Exchange:
        """The last exchange; raises ``StateError`` if there is none."""
        if not self.exchanges:
            raise StateError("there are no messages yet; write one")
        return self.exchanges[-1]

    @property
    def retried(self) -> Exchange | None:
        """The exchange whose message waits for another answer, if it does."""
        message, instead = self._waiting or (None, None)
        return instead if instead is not None and instead.message == message else None

    def ask(self, message: str) -> None:
        """Add a message, which waits for its answer."""
        self._wait(_Waiting(_checked(message, "message")))

    def retry(self) -> None:
        """Make the last message wait for another answer."""
        last = self.last
        self._wait(_Waiting(last.message, last))
        self.exchanges.pop()

    def edit(self, message: str) -> None:
        """Replace the last message; the new one waits for its answer."""
        self._wait(_Waiting(_checked(message, "message"), self.last))
        self.exchanges.pop()

    def answered(self, answer: str, reasoning: str = "") -> None:
        """Add the answer, or as much as there is of it, to the waiting message."""
        waiting = self._take_waiting()
        self.exchanges.append(Exchange(waiting.message, answer, reasoning))

    def revise(self, answer: str, reasoning: str = "") -> None:
        """Replace the last answer."""
        self.exchanges[-1] = Exchange(self.last.message, answer, reasoning)

    def drop(self, count: int) -> list[Exchange]:
        """Forget the oldest exchanges; returns them."""
        if not 1 <= count <= len(self.exchanges):
            raise StateError(
                f"expected 1 to {len(self.exchanges)} exchanges to drop, got {count}"
                if self.exchanges
                else "there are no exchanges to drop; write a message"
            )
        dropped, self.exchanges = self.exchanges[:count], self.exchanges[count:]
        return dropped

    def withdraw(self) -> None:
        """Take back the waiting message, and restore what it replaced."""
        waiting = self._take_waiting()
        if waiting.instead is not None:
            self.exchanges.append(waiting.instead)

    def undo(self) -> Exchange:
        """Take back the last exchange."""
        last = self.last
        self.exchanges.pop()
        return last

    def clear(self) -> None:
        """Forget all exchanges; the system message, settings and forms stay."""
        self.exchanges.clear()
        self._waiting = None

    def fork(self) -> Conversation:
        """An independent copy."""
        return deepcopy(self)

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

    def set(self, name: str, value: Any) -> None:
        """Set an option; ``None`` is its default. Raises ``OptionError`` for an invalid one."""
        self.configure({**self.settings, name.replace("-", "_"): value}, self.forms)

    def require(self, kind: str, source: Any) -> None:
        """Require a form of answers; ``None`` lifts it.

        ``close_json`` needs a form, so it is reset with the last one.
        """
        forms = _given({**self.forms, kind: source})
        lifted = {} if forms else {"close_json": None}
        self.configure({**self.settings, **lifted}, forms)

    def configure(self, settings: Mapping[str, Any], forms: Mapping[str, Any]) -> None:
        """Take settings and forms that are valid together; ``None`` is as if it was not there."""
        settings = {name: _with_ids(name, value) for name, value in settings.items()}
        for name in settings:
            if name in _ELSEWHERE:
                raise OptionError(name, _ELSEWHERE[name])
            if name not in SETTABLE:
                raise unknown(name, SETTABLE, "/set lists the options")
        Options.of({"max_tokens": None, **settings, "filters": _specifications(forms)})
        self.settings, self.forms = _given(settings), _given(forms)

    def values(self) -> dict[str, Any]:
        """Every option that can be set, with its value in force."""
        values = checked(self.options)
        return {name: values[name] for name in SETTABLE}

    # ---- JSON ----

    def as_json(self) -> dict[str, Any]:
        """The conversation as JSON data."""
        return {
            "messages": self.messages,
            "settings": dict(self.settings),
            "forms": dict(self.forms),
            "template": dict(self.template),
        }

    def as_text(self) -> str:
        """The same as text, for a file."""
        return json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def of_json(cls, data: Any) -> Conversation:
        """The conversation that ``as_json`` gave; ``OptionError`` names a part that is wrong."""
        if not isinstance(data, Mapping) or "messages" not in data:
            raise OptionError(
                "messages", "expected a file that /save has written, got one without messages"
            )
        for key in data:
            if key not in _KEYS:
                raise OptionError(
                    key, f"a conversation has no such part; known are {', '.join(_KEYS)}"
                )
        for key in _KEYS[1:]:
            if not isinstance(data.get(key, {}), Mapping):
                raise OptionError(key, f"expected a JSON object, got {type(data[key]).__name__}")
        found = cls(template=data.get("template"))
        found._take_messages(data["messages"])
        forms = data.get("forms", {})
        for kind in forms:
            if kind not in FORMS:
                raise OptionError(f"forms.{kind}", f"expected one of {', '.join(FORMS)}")
        found.configure(data.get("settings", {}), forms)
        return found

    def _take_messages(self, messages: Any) -> None:
        if not isinstance(messages, list):
            raise OptionError("messages", f"expected a list, got {type(messages).__name__}")
        for i, message in enumerate(messages):
            role = self._expected(i, message)
            content = message.get("content")
            if not isinstance(content, str):
                raise OptionError(
                    f"messages[{i}].content", f"expected text, got {type(content).__name__}"
                )
            if role == "system":
                self.system = content
            elif role == "user":
                self.ask(content)
            else:
                reasoning = message.get("reasoning_content")
                self.answered(content, reasoning if isinstance(reasoning, str) else "")
        if self._waiting is not None:
            raise OptionError("messages", "the last message has no answer; leave it out")

    def _expected(self, i: int, message: Any) -> str:
        role = message.get("role") if isinstance(message, Mapping) else None
        roles = ["assistant"] if self._waiting is not None else ["user"]
        if i == 0:
            roles.append("system")
        if role not in roles:
            raise OptionError(f"messages[{i}].role", f"expected {' or '.join(roles)}, got {role!r}")
        return str(role)

    def _wait(self, waiting: _Waiting) -> None:
        if self._waiting is not None:
            raise StateError("a message is waiting for its answer; answer or withdraw it first")
        self._waiting = waiting

    def _take_waiting(self) -> _Waiting:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise StateError("no message is waiting for an answer")
        return waiting


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
