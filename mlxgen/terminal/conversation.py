"""A conversation: its messages, and the settings for the next answer.

Owns the messages, the settings and the forms that answers must have, how they are taken back, their
JSON, and the file that keeps the last conversation for ``--resume``. Must never know a model or a
terminal. A conversation is a value: every change gives another one, and leaves this one as it was.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from ..engine import Options
from ..errors import OptionError, PromptError, StateError
from ..filters import AllOf, Specification
from ..options.table import OPTIONS, checked, unknown
from .asked import FORMS, check_text, is_number, read_json, replaced, specification

Message: TypeAlias = Mapping[str, str]

# Options that /set does not take, and what to do instead.
_ELSEWHERE = {
    "filters": "use /json, /regex or /lark",
    "stop_tokens": "use stop, with the text of the tokens",
    "prefix": "only a program can pass tokens; say in the message how to begin",
    **dict.fromkeys(("hooks", "max_resample", "prediction"), "only a program can pass it"),
    **dict.fromkeys(
        ("top_logprobs", "top_candidates", "prompt_logprobs"), "use /tokens, which shows the odds"
    ),
    **dict.fromkeys(
        ("allow_retract", "hold_tokens", "heal", "stop_in_reasoning"),
        "means nothing in a chat; leave it out",
    ),
}
SETTABLE = tuple(name for name in OPTIONS if name not in _ELSEWHERE)
_PARTS = ("settings", "forms", "template")


@dataclass(frozen=True, slots=True)
class Conversation:
    """See the module; every change gives another one.

    - ``system``: the system message. ``said``: messages, each followed by its answer; the last one
      may wait for its answer.
    - ``settings``: the options of ``LanguageModel.stream`` that were set; by default an answer may
      fill the context. ``defaults``: the model's values for options that are not set.
    - ``forms``: what answers must match (see ``FORMS``): a JSON schema, a regular expression, a
      grammar; by kind.
    - ``template``: further variables of the chat template; ``allow_control_tokens`` as in ``Chat``.

    ``defaults`` and ``allow_control_tokens`` are not saved with the conversation.
    """

    system: str | None = None
    said: tuple[Message, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    forms: Mapping[str, Any] = field(default_factory=dict)
    template: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    allow_control_tokens: bool = False

    # ---- messages ----

    @property
    def messages(self) -> list[Message]:
        """All chat messages."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.said]

    @property
    def asked(self) -> list[str]:
        """The user's messages, in order."""
        return [message["content"] for message in self.said[::2]]

    @property
    def last(self) -> str:
        """The user's last message; raises ``StateError`` if there is none."""
        if not self.said:
            raise StateError("there are no messages yet; write one")
        return self.asked[-1]

    def with_system(self, text: str | None) -> Conversation:
        """The conversation with another system message, or none."""
        return replace(self, system=None if text is None else _checked(text, "system message"))

    def ask(self, message: str) -> Conversation:
        """The conversation with another message, which waits for its answer."""
        return self._saying(role="user", content=_checked(message, "message"))

    def again(self, message: str | None = None) -> Conversation:
        """The conversation with the last message, or ``message`` instead, waiting for an answer."""
        last = self.last
        return self.undone().ask(last if message is None else message)

    def answered(self, text: str, reasoning: str = "") -> Conversation:
        """The conversation with the answer, complete or not, to the waiting message."""
        thought = {"reasoning_content": reasoning} if reasoning else {}
        return self._saying(role="assistant", content=text, **thought)

    def undone(self) -> Conversation:
        """The conversation without the last message and its answer."""
        return replace(self, said=self.said[: 2 * len(self.asked) - 2])

    def without(self, count: int) -> Conversation:
        """The conversation without its ``count`` oldest exchanges."""
        if not 1 <= count <= len(self.asked):
            raise StateError(
                f"expected 1 to {len(self.asked)} exchanges to drop, got {count}"
                if self.said
                else "there are no exchanges to drop; write a message"
            )
        return replace(self, said=self.said[2 * count :])

    def _saying(self, **message: str) -> Conversation:
        return replace(self, said=(*self.said, message))

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
        """The conversation with an option set; ``None`` resets it. Raises ``OptionError``."""
        return self.configured({**self.settings, name.replace("-", "_"): value}, self.forms)

    def require(self, kind: str, source: Any) -> Conversation:
        """The conversation with a form for answers; ``None`` lifts it.

        ``close_json`` needs a form, so it is reset with the last one.
        """
        forms = _given({**self.forms, kind: source})
        lifted = {} if forms else {"close_json": None}
        return self.configured({**self.settings, **lifted}, forms)

    def configured(self, settings: Mapping[str, Any], forms: Mapping[str, Any]) -> Conversation:
        """The conversation with settings and forms, checked together; ``None`` is as if not set."""
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
        """The conversation that ``as_text`` wrote; ``OptionError`` names a part that is wrong."""
        if not isinstance(data, Mapping) or "messages" not in data:
            raise OptionError(
                "messages", "expected a file that /save has written, got one without messages"
            )
        for key, value in data.items():
            if key not in ("messages", *_PARTS):
                known = ", ".join(("messages", *_PARTS))
                raise OptionError(key, f"a conversation has no such part; known are {known}")
            kind, named = (list, "list") if key == "messages" else (Mapping, "JSON object")
            if not isinstance(value, kind):
                raise OptionError(key, f"expected a {named}, got {type(value).__name__}")
        settings, forms, template = (data.get(name, {}) for name in _PARTS)
        for kind in forms.keys() - {*FORMS}:
            raise OptionError(f"forms.{kind}", f"expected one of {', '.join(FORMS)}")
        found = cls(template=template)
        for i, message in enumerate(data["messages"]):
            message = message if isinstance(message, Mapping) else {}
            role, content = message.get("role"), message.get("content")
            roles = ["assistant" if len(found.said) % 2 else "user", *["system"] * (i == 0)]
            if role not in roles:
                expected = " or ".join(roles)
                raise OptionError(f"messages[{i}].role", f"expected {expected}, got {role!r}")
            if not isinstance(content, str):
                got = type(content).__name__
                raise OptionError(f"messages[{i}].content", f"expected text, got {got}")
            if role == "assistant":
                thought = message.get("reasoning_content")
                found = found.answered(content, thought if isinstance(thought, str) else "")
            else:
                found = found.ask(content) if role == "user" else found.with_system(content)
        if len(found.said) % 2:
            raise OptionError("messages", "the last message has no answer; leave it out")
        return found.configured(settings, forms)


def _checked(text: str, what: str) -> str:
    if not text.strip():
        raise PromptError(f"the {what} is empty; write some text")
    check_text(text, what)
    return text


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _specifications(forms: Mapping[str, Any]) -> Sequence[Specification]:
    return [specification(kind, source) for kind, source in _given(forms).items()]


def _with_ids(name: str, value: Any) -> Any:
    """JSON has only text keys, but those of ``logit_bias`` are token ids."""
    if name == "logit_bias" and isinstance(value, Mapping):
        known = {key: is_number(str(key)) for key in value}
        return {int(key) if known[key] else key: bias for key, bias in value.items()}
    return value


# ---- the last conversation ----


def place() -> Path:
    """The file: ``mlxgen/last_chat.json`` in the user's folder for the state of programs."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    try:
        return Path(state).expanduser() / "mlxgen" / "last_chat.json"
    except RuntimeError as error:  # as in a container that does not know its user
        raise OptionError(
            "resume", "there is no home folder, so no chat is kept; set XDG_STATE_HOME to keep it"
        ) from error


def keep(conversation: Conversation) -> None:
    """Write a conversation there, readable only by its owner. A failure, as with a full disk or
    without a home folder, does not disturb the chat."""
    with contextlib.suppress(OSError, OptionError):
        path = place()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replaced(path, conversation.as_text())


def resumed() -> Conversation:
    """The conversation that was kept; raises ``OptionError`` if there is none."""
    path = place()
    if not path.exists():
        raise OptionError("resume", "there is no chat to go on with; begin one with --chat")
    return Conversation.of_json(read_json("resume", str(path)))
