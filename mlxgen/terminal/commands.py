"""The chat's commands: lines that begin with a slash.

Owns the commands with their help, the reading of their arguments, and the files that they write.
Must never know how an answer is made or shown. Invariant: a command does everything it says, or
raises and changes nothing.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

from ..errors import MlxgenError, OptionError
from .conversation import Conversation
from .files import path_of, read_form, read_json
from .reader import QUOTES, Reader

OFF = ("off", "none", "default")


class Host(Protocol):
    """What commands act on."""

    conversation: Conversation

    @property
    def reader(self) -> Reader:
        """Where the person's messages come from."""

    def note(self, line: str) -> None:
        """Tell the person something."""

    def check(self, conversation: Conversation) -> None:
        """Raise for what the model cannot follow."""

    def answer(self) -> None:
        """Answer the waiting message."""


class Command(NamedTuple):
    """``argument`` is what the help shows; ``run`` gets what was typed for it."""

    argument: str
    help: str
    run: Callable[[Host, str], None]


def is_command(text: str) -> bool:
    """Whether a line is for the chat itself."""
    return text.startswith("/")


def run_command(host: Host, text: str) -> None:
    """Run a command line; ``EOFError`` ends the chat, ``OptionError`` says what is wrong."""
    name, _, argument = text[1:].partition(" ")
    command = COMMANDS.get(name.strip())
    if command is None:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean /{close[0]}?" if close else "/help lists the commands"
        raise OptionError(
            f"/{name}", f"there is no such command; {hint} ({QUOTES}/{name}{QUOTES} is a message)"
        )
    argument = argument.strip()
    if argument and not command.argument:
        raise OptionError(f"/{name}", f"expected no argument, got {argument!r}; leave it out")
    command.run(host, argument)


# ---- what was said ----


def _undo(host: Host, _: str) -> None:
    taken = host.conversation.undo()
    host.note(f"took back: {_short(taken.message)}")


def _retry(host: Host, _: str) -> None:
    host.conversation.retry()
    options = host.conversation.values()
    if options["temperature"] == 0:
        host.note("the temperature is 0, so the answer stays the same; try /set temperature 0.8")
    elif options["seed"] is not None:
        host.note("the seed is set, so the answer stays the same; try /set seed default")
    host.answer()


def _edit(host: Host, argument: str) -> None:
    message = host.conversation.last.message
    text: str | None = argument or host.reader.edit(message)
    if text is None:
        host.note(f"the message was:\n{message}\nwrite the new one:")
        text = host.reader.read().text
    if not text.strip():
        host.note("nothing changed")
        return
    host.conversation.edit(text)
    host.answer()


def _show(host: Host, _: str) -> None:
    for message in host.conversation.messages:
        host.note(f"[{message['role']}] {message['content']}")
    if not host.conversation.messages:
        host.note("no messages yet")


def _clear(host: Host, _: str) -> None:
    host.conversation.clear()
    host.note("a new conversation; the settings stay")


def _system(host: Host, argument: str) -> None:
    if argument:
        host.conversation.system = None if argument in OFF else argument
    host.note(f"system message: {host.conversation.system or 'none'}")


# ---- how answers are made ----


def _set(host: Host, argument: str) -> None:
    name, _, value = argument.partition(" ")
    name = name.replace("-", "_")
    if value.strip():
        _change(host, lambda twin: twin.set(name, read_value(value.strip())))
    values = host.conversation.values()
    if name and name not in values:
        host.conversation.fork().set(name, None)  # raises, and says why
    for known in [name] if name else values:
        star = "*" if known in host.conversation.settings else " "
        host.note(f"{star} {known:<20} {json.dumps(values[known], default=str)}")
    if not name:
        host.note("* was set here; /set NAME VALUE sets an option, /set NAME default resets it")


def _form(kind: str, host: Host, argument: str) -> None:
    if argument:
        source = None if argument in OFF else read_form(kind, f"/{kind}", argument)
        _change(host, lambda twin: twin.require(kind, source))
    source = host.conversation.forms.get(kind)
    shown = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
    host.note(f"{kind}: {'off' if source is None else shown}")


def _change(host: Host, change: Callable[[Conversation], None]) -> None:
    twin = host.conversation.fork()
    change(twin)
    host.check(twin)
    host.conversation = twin


def read_value(text: str) -> Any:
    """A value as JSON, or else as plain text; ``None`` is the default."""
    if text in OFF:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# ---- files ----


def _save(host: Host, argument: str) -> None:
    path = path_of("/save", argument)
    text = json.dumps(host.conversation.as_json(), indent=2, ensure_ascii=False)
    try:
        if path.exists():
            Conversation.of_json(read_json("/save", argument))
        beside = path.with_name(path.name + ".part")  # a full disk must not destroy the old one
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        raise OptionError("/save", f"{path} cannot be written: {error.strerror}") from error
    except MlxgenError as error:
        problem = "exists and is not a conversation; choose another name"
        raise OptionError("/save", f"{path} {problem}") from error
    host.note(f"saved to {path}: {_count(host.conversation)}")


def _load(host: Host, argument: str) -> None:
    data = read_json("/load", argument)
    path = path_of("/load", argument)
    try:
        loaded = Conversation.of_json(data)
        loaded.defaults = host.conversation.defaults
        loaded.allow_control_tokens = host.conversation.allow_control_tokens
        host.check(loaded)
    except MlxgenError as error:
        raise OptionError("/load", f"{path}: {error}") from error
    host.conversation = loaded
    host.note(f"loaded {path}: {_count(loaded)}")


# ---- help ----


def _help(host: Host, _: str) -> None:
    for name, command in COMMANDS.items():
        host.note(f"/{name} {command.argument:<16}".ljust(26) + command.help)
    host.note(
        f"A line that ends in \\ continues; {QUOTES} begins and ends a block of lines.\n"
        "Ctrl-C stops an answer, Ctrl-D ends the chat."
    )


def _quit(host: Host, _: str) -> None:
    raise EOFError


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _count(conversation: Conversation) -> str:
    count = len(conversation.exchanges)
    return f"{count} exchange{'' if count == 1 else 's'}"


COMMANDS = {
    "undo": Command("", "take back the last exchange", _undo),
    "retry": Command("", "answer the last message again", _retry),
    "edit": Command("[TEXT]", "change the last message and answer it again", _edit),
    "system": Command("[TEXT|off]", "show or set the system message", _system),
    "set": Command("[NAME [VALUE]]", "show or set an option, such as /set temperature 0.3", _set),
    "json": Command("[FILE|off]", "answers are JSON that matches a schema", partial(_form, "json")),
    "regex": Command(
        "[PATTERN|off]", "answers match a regular expression", partial(_form, "regex")
    ),
    "lark": Command("[FILE|off]", "answers follow a Lark grammar", partial(_form, "lark")),
    "show": Command("", "show the conversation", _show),
    "clear": Command("", "start over; the settings stay", _clear),
    "save": Command("FILE", "write messages and settings to a JSON file", _save),
    "load": Command("FILE", "continue a saved conversation", _load),
    "help": Command("", "show this list", _help),
    "quit": Command("", "end the chat", _quit),
}
