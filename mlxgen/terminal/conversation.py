"""A conversation: what was said, and how the next answer is to be made.

Owns the exchanges, the system message, the settings and the forms that answers must have, with
their taking back and their JSON. Must never know a model, a terminal or a file. Invariant: every
exchange but a message that waits has an answer; what cannot be done raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from ..engine import Options
from ..errors import OptionError, PromptError, StateError
from ..filters import AllOf, JsonSchema, Lark, Regex, Specification
from ..options.table import OPTIONS

# Options that are not for /set, and what to do instead.
_ELSEWHERE = {
    "filters": "say /json, /regex or /lark",
    "hooks": "only a program can give hooks",
    "prefix": "only a program can give tokens; say how to begin in the message",
    "allow_retract": "what was shown stays, leave it out",
    "top_logprobs": "a chat shows no probabilities, leave it out",
    "top_candidates": "a chat shows no probabilities, leave it out",
    "prompt_logprobs": "a chat shows no probabilities, leave it out",
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
    """A message and its answer; ``reasoning`` is what the model thought before."""

    message: str
    answer: str
    reasoning: str = ""


class _Waiting(NamedTuple):
    """A message without an answer, and the exchange that it stands in the place of."""

    message: str
    instead: Exchange | None = None


class Conversation:
    """See the module. ``ask``, ``retry`` and ``edit`` leave a message waiting, which
    ``answered`` or ``withdraw`` must follow.

    ``settings`` are options of ``LanguageModel.stream``; by default an answer may have as many
    tokens as the context holds. ``template`` has further variables of the chat template.
    ``defaults`` are options of the model for what was not set, and ``allow_control_tokens`` is that
    of ``Chat``; neither is saved with what was said.
    """

    def __init__(
        self,
        *,
        system: str | None = None,
        template: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] = MappingProxyType({}),
        allow_control_tokens: bool = False,
    ) -> None:
        self.exchanges: list[Exchange] = []
        self.template: dict[str, Any] = dict(template or {})
        self.defaults = defaults
        self.allow_control_tokens = allow_control_tokens
        self._system: str | None = None
        self._settings: dict[str, Any] = {}
        self._forms: dict[str, Any] = {}
        self._waiting: _Waiting | None = None
        self.system = system

    # ---- what was said ----

    @property
    def system(self) -> str | None:
        """The system message."""
        return self._system

    @system.setter
    def system(self, text: str | None) -> None:
        self._system = None if text is None else _checked(text, "system message")

    @property
    def messages(self) -> list[dict[str, str]]:
        """Everything that was said, the message that waits included, as chat messages."""
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
        """The last exchange; raises ``StateError`` where there is none."""
        if not self.exchanges:
            raise StateError("nothing was said yet; write a message")
        return self.exchanges[-1]

    def ask(self, message: str) -> None:
        """A new message, which waits for its answer."""
        self._wait(_Waiting(_checked(message, "message")))

    def retry(self) -> None:
        """Let the last message wait for another answer."""
        last = self.last
        self._wait(_Waiting(last.message, last))
        self.exchanges.pop()

    def edit(self, message: str) -> None:
        """Put another message in the place of the last one; it waits for its answer."""
        self._wait(_Waiting(_checked(message, "message"), self.last))
        self.exchanges.pop()

    def answered(self, answer: str, reasoning: str = "") -> None:
        """The answer, or what there is of it, to the message that waits."""
        waiting = self._take_waiting()
        self.exchanges.append(Exchange(waiting.message, answer, reasoning))

    def withdraw(self) -> None:
        """Take the message that waits back; what it stood in the place of is there again."""
        waiting = self._take_waiting()
        if waiting.instead is not None:
            self.exchanges.append(waiting.instead)

    def undo(self) -> Exchange:
        """Take the last exchange back."""
        last = self.last
        self.exchanges.pop()
        return last

    def clear(self) -> None:
        """Forget every exchange; the system message, settings and forms stay."""
        self.exchanges.clear()
        self._waiting = None

    def fork(self) -> Conversation:
        """An independent copy."""
        twin = Conversation(
            system=self._system,
            template=self.template,
            defaults=self.defaults,
            allow_control_tokens=self.allow_control_tokens,
        )
        twin.exchanges = list(self.exchanges)
        twin._settings, twin._forms = dict(self._settings), dict(self._forms)
        twin._waiting = self._waiting
        return twin

    # ---- how answers are made ----

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options that were set."""
        return self._settings

    @property
    def forms(self) -> Mapping[str, Any]:
        """What answers must be: a JSON schema, a regular expression, a grammar; by kind."""
        return self._forms

    @property
    def form(self) -> Specification | None:
        """The specification of all forms together."""
        return _specification(self._forms)

    @property
    def options(self) -> dict[str, Any]:
        """The options for ``LanguageModel.stream``, without ``filters``."""
        return {"max_tokens": None, **self.defaults, **self._settings}

    def set(self, name: str, value: Any) -> None:
        """Set an option; ``None`` is its default. Raises ``OptionError`` as the engine does."""
        name = name.replace("-", "_")
        changed = {**self._settings, name: _with_ids(name, value)}
        _check(changed, self._forms)
        self._settings = {key: kept for key, kept in changed.items() if kept is not None}

    def require(self, kind: str, source: Any) -> None:
        """Let answers have a form (see ``FORMS``); ``None`` lifts it.

        Without a form there is nothing to close, so ``close_json`` goes with the last one.
        """
        changed = {key: kept for key, kept in self._forms.items() if key != kind}
        if source is not None:
            changed[kind] = source
        settings = dict(self._settings)
        if not changed:
            settings.pop("close_json", None)
        _check(settings, changed)
        self._forms, self._settings = changed, settings

    def values(self) -> dict[str, Any]:
        """Every option that can be set, with the value that is in force."""
        options = Options.of({**self.options, "filters": _filters(self._forms)})
        sampling = options.sampling
        return {
            name: getattr(sampling if hasattr(sampling, name) else options, name)
            for name in SETTABLE
        }

    # ---- JSON ----

    def as_json(self) -> dict[str, Any]:
        """The conversation as JSON data."""
        return {
            "messages": self.messages,
            "settings": dict(self._settings),
            "forms": dict(self._forms),
            "template": dict(self.template),
        }

    @classmethod
    def of_json(cls, data: Any) -> Conversation:
        """What ``as_json`` gave; ``OptionError`` names the part that cannot be read."""
        if not isinstance(data, Mapping) or "messages" not in data:
            raise OptionError("messages", "there are none; give what /save has written")
        for key in data:
            if key not in _KEYS:
                raise OptionError(
                    key, f"a conversation has no such part; known: {', '.join(_KEYS)}"
                )
        for key in _KEYS[1:]:
            if not isinstance(data.get(key, {}), Mapping):
                raise OptionError(key, "this is no JSON object")
        found = cls(template=data.get("template"))
        found._take_messages(data["messages"])
        for kind, source in data.get("forms", {}).items():
            if kind not in FORMS:
                raise OptionError(f"forms.{kind}", f"known are {', '.join(FORMS)}")
            found.require(kind, source)
        settings = {name: _with_ids(name, v) for name, v in data.get("settings", {}).items()}
        _check(settings, found._forms)
        found._settings = {name: value for name, value in settings.items() if value is not None}
        return found

    def _take_messages(self, messages: Any) -> None:
        if not isinstance(messages, list):
            raise OptionError("messages", "this is no list of messages")
        for i, message in enumerate(messages):
            role = self._expected(i, message)
            content = message.get("content")
            if not isinstance(content, str):
                raise OptionError(f"messages[{i}].content", "this is no text")
            if role == "system":
                self.system = content
            elif role == "user":
                self.ask(content)
            else:
                reasoning = message.get("reasoning_content")
                self.answered(content, reasoning if isinstance(reasoning, str) else "")
        if self._waiting is not None:
            raise OptionError("messages", "the last one has no answer; leave it out")

    def _expected(self, i: int, message: Any) -> str:
        role = message.get("role") if isinstance(message, Mapping) else None
        roles = ["assistant"] if self._waiting is not None else ["user"]
        if i == 0:
            roles.append("system")
        if role not in roles:
            raise OptionError(f"messages[{i}].role", f"{role!r} is not {' or '.join(roles)}")
        return str(role)

    def _wait(self, waiting: _Waiting) -> None:
        if self._waiting is not None:
            raise StateError("a message waits for its answer; it has to come first")
        self._waiting = waiting

    def _take_waiting(self) -> _Waiting:
        waiting, self._waiting = self._waiting, None
        if waiting is None:
            raise StateError("no message waits for an answer")
        return waiting


def _checked(text: str, what: str) -> str:
    if not text.strip():
        raise PromptError(f"the {what} is empty; give it some text")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise PromptError(f"the {what} is not valid UTF-8 text")
    return text


def _check(settings: Mapping[str, Any], forms: Mapping[str, Any]) -> None:
    for name in settings:
        if name in _ELSEWHERE:
            raise OptionError(name, _ELSEWHERE[name])
    Options.of({"max_tokens": None, **settings, "filters": _filters(forms)})


def _filters(forms: Mapping[str, Any]) -> list[Specification] | None:
    spec = _specification(forms)
    return None if spec is None else [spec]


def _specification(forms: Mapping[str, Any]) -> Specification | None:
    made: Sequence[Specification] = [FORMS[kind](source) for kind, source in forms.items()]
    return None if not made else made[0] if len(made) == 1 else AllOf(*made)


def _with_ids(name: str, value: Any) -> Any:
    """JSON's keys are text, and those of ``logit_bias`` token ids."""
    if name == "logit_bias" and isinstance(value, Mapping):
        return {int(key) if str(key).isdigit() else key: bias for key, bias in value.items()}
    return value
