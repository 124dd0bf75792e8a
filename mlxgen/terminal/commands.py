"""The chat's commands: lines that begin with a slash.

Owns the commands with their help, the reading of their arguments, and the files that they write.
Must never know how an answer is made or shown. Invariant: a command does everything it says, or
raises and changes nothing.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from ..errors import MlxgenError, OptionError
from ..words import counted
from .conversation import SETTABLE, Conversation
from .files import path_of, read_form, read_json, replaced
from .last import Last, Place
from .odds import LEAST
from .reader import QUOTES, Reader

OFF = ("off", "none", "default")
DIGITS = 9  # of a number at most
_AT = re.compile(rf"@(\d{{1,{DIGITS}}})(?:\s+|$)")


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

    @property
    def last(self) -> Last:
        """The last answer; raises ``StateError`` if there is none that can be taken back."""

    def answer(self) -> None:
        """Answer the waiting message."""

    def go_on(self) -> None:
        """Go on with the last answer from where it stands."""

    def moved(self) -> None:
        """Take the last answer as it stands now into the conversation."""

    def show(self) -> None:
        """Show the last answer as it stands."""

    def tokens(self, count: int) -> None:
        """Show the odds of the last answer's tokens, and list so many of the least sure."""

    def branches(self) -> None:
        """Show the versions of the last answer as a tree."""

    def compare(self, left: int, right: int) -> None:
        """Show two versions of the last answer side by side."""

    def freed(self, count: int) -> int:
        """How many tokens dropping so many of the oldest exchanges frees."""


class Command(NamedTuple):
    """``argument`` and ``help`` are what the list shows, and ``more`` is what ``/help COMMAND``
    adds; ``run`` gets what was typed for it. A command without ``more`` is not listed."""

    argument: str
    help: str
    run: Callable[[Host, str], None]
    more: str = ""


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


def _drop(host: Host, argument: str) -> None:
    count = _number("/drop", argument or "1")
    freed = host.freed(count)
    dropped = host.conversation.drop(count)
    named = "; ".join(_short(exchange.message) for exchange in dropped)
    host.note(f"dropped, which frees {counted(freed, 'token')}: {named}")


# ---- the last answer ----


def _tokens(host: Host, argument: str) -> None:
    count = len(host.last.chunks) if argument == "all" else LEAST
    host.tokens(_number("/tokens", argument) if argument not in ("", "all") else count)


def _rewind(host: Host, argument: str) -> None:
    last = host.last
    place, rest = _place("/rewind", last, argument)
    if rest:
        text = _quoted("/rewind", rest)
        is_count = rest == text and rest.isdecimal()
        place = last.last(_number("/rewind", rest)) if is_count else last.before(text)
    if place is None:
        raise OptionError(
            "/rewind",
            'expected a number of tokens, a "text" to go back before, or @ and the '
            "number of a token",
        )
    gone = last.rewind(place)
    host.moved()
    host.show()
    what = repr(_short(gone)) if gone else "nothing but the end"
    host.note(
        f"(took back: {what}; /continue goes on from here, "
        "/instead TEXT puts something else here, and a message answers what is left)"
    )


def _continue(host: Host, _: str) -> None:
    if host.last.rewound and host.conversation.values()["temperature"] == 0:
        host.note("the temperature is 0, so the same comes again; try /instead TEXT")
    host.go_on()


def _instead(host: Host, argument: str) -> None:
    last = host.last
    place, rest = _place("/instead", last, argument)
    text = _quoted("/instead", rest)
    if not text:
        raise OptionError("/instead", "expected a token or a text, such as /instead @3 Rome")
    if place is None:
        if last.answer.finish_reason is not None:
            raise OptionError(
                "/instead",
                "the answer has ended; say where, such as /instead @3 Rome (/tokens "
                "shows the numbers), or go back with /rewind first",
            )
        place = last.last(0)
    last.put(place, text, exact=text != rest)
    host.go_on()


def _branches(host: Host, argument: str) -> None:
    last = host.last
    if argument:
        last.go_to(_number("/branches", argument))
        host.moved()
    host.branches()
    if argument:
        host.show()


def _compare(host: Host, argument: str) -> None:
    last, numbers = host.last, argument.split()
    if len(numbers) > 2:
        raise OptionError("/compare", "expected two branches at most, such as /compare 1 2")
    given = [_number("/compare", number) for number in numbers]
    if not given:
        given = [last.branches.other()]
    if len(given) == 1:
        given.append(last.branches.here)
    host.compare(*sorted(given))


def _place(name: str, last: Last, argument: str) -> tuple[Place | None, str]:
    """The place that ``@`` and a number say, and what follows it."""
    found = _AT.match(argument)
    if found is None:
        return None, argument
    return last.at(int(found[1])), argument[found.end() :]


def _quoted(name: str, text: str) -> str:
    """A text, without its quotes: between these it is taken as JSON takes it."""
    if not text.startswith('"'):
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        raise OptionError(name, f"expected a text between quotes, got {text}") from error
    return str(value)


def _number(name: str, text: str) -> int:
    if not text.isdecimal() or len(text) > DIGITS:
        raise OptionError(name, f"expected a number, got {_short(text)!r}")
    return int(text)


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
        replaced(path, text + "\n")
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


def _help(host: Host, argument: str) -> None:
    name = argument.removeprefix("/")
    if name and name not in COMMANDS:
        run_command(host, f"/{name}")  # raises, and says what is close
    listed = [name] if name else [each for each in COMMANDS if COMMANDS[each].more]
    for each in listed:
        command = COMMANDS[each]
        host.note(f"/{each} {command.argument:<16}".ljust(26) + command.help)
    if name:
        host.note(COMMANDS[name].more)
    else:
        host.note(
            f"A line that ends in \\ continues; {QUOTES} begins and ends a block of lines.\n"
            "Ctrl-C stops an answer, Ctrl-D ends the chat, Tab completes commands.\n"
            "/help COMMAND says more about one, such as /help rewind."
        )


def _quit(host: Host, _: str) -> None:
    raise EOFError


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


def _count(conversation: Conversation) -> str:
    return counted(len(conversation.exchanges), "exchange")


COMMANDS = {
    "undo": Command(
        "",
        "take back the last exchange",
        _undo,
        "It removes your last message and its answer. /edit changes the message instead.",
    ),
    "retry": Command(
        "",
        "answer the last message again",
        _retry,
        "The new answer is drawn with other random numbers; at temperature 0 it is the "
        "same. The old one stays as a branch: see /branches.",
    ),
    "tokens": Command(
        "[N|all]",
        "the odds of the last answer's tokens",
        _tokens,
        "It shows the answer tinted by probability, and lists its N least likely tokens "
        "with their numbers and what else was likely there. The numbers are for /rewind @N "
        "and /instead @N.",
    ),
    "rewind": Command(
        'N|"TEXT"|@N',
        "take back N tokens, or from there on",
        _rewind,
        '/rewind 5 takes back the last 5 tokens of the answer, /rewind "Paris" everything '
        "from the last Paris on, and /rewind @12 everything from token 12 on. Then "
        "/continue goes on from there, and /instead TEXT puts something else there first.",
    ),
    "continue": Command(
        "",
        "go on with the last answer",
        _continue,
        "It goes on after Ctrl-C, after /rewind, and after an answer that was cut off. "
        "Settings that you have changed since hold for what follows.",
    ),
    "instead": Command(
        "[@N] TEXT",
        "put another text there, and go on",
        _instead,
        "/instead @12 Rome puts Rome in the place of token 12; without @N, at the end of "
        "what /rewind left. A text in double quotes is taken exactly as it is; otherwise it "
        "gets the space that the word before it needs.",
    ),
    "branches": Command(
        "[N]",
        "the versions of the last answer; go to one",
        _branches,
        "/rewind, /instead and /retry leave the version before them behind. /branches draws "
        "all of them as a tree, with the odds where they part; /branches 1 goes back to the "
        "first. The next message keeps the version that is shown.",
    ),
    "compare": Command(
        "[N [N]]",
        "two versions side by side",
        _compare,
        "/compare 1 3 shows branches 1 and 3, /compare 1 shows branch 1 and the current "
        "one, with what differs marked.",
    ),
    "edit": Command(
        "[TEXT]",
        "change the last message and answer it again",
        _edit,
        "Without TEXT, the message comes up for editing. An empty line leaves it as it was.",
    ),
    "system": Command(
        "[TEXT|off]",
        "show or set the system message",
        _system,
        "It holds from the next answer on, for the whole conversation: /system Answer in French.",
    ),
    "set": Command(
        "[NAME [VALUE]]",
        "show or set an option, such as /set temperature 0.3",
        _set,
        "/set lists the options with their values, /set temperature shows one, /set "
        "temperature 0.3 changes it and /set temperature default resets it. A value is "
        'JSON, or else plain text: /set stop "\\n" and /set banned however both work.',
    ),
    "json": Command(
        "[FILE|off]",
        "answers are JSON that matches a schema",
        partial(_form, "json"),
        "/json person.json reads the schema from a file; /json {...} takes it from the "
        "line. It holds for the answer and not for the thinking before it, until /json off.",
    ),
    "regex": Command(
        "[PATTERN|off]",
        "answers match a regular expression",
        partial(_form, "regex"),
        "/regex (yes|no) allows these two answers, until /regex off.",
    ),
    "lark": Command("[FILE|off]", "answers follow a Lark grammar", partial(_form, "lark")),
    "show": Command(
        "",
        "show the conversation",
        _show,
        "Every message as the model sees it, with its role.",
    ),
    "clear": Command(
        "",
        "start over; the settings stay",
        _clear,
        "All messages are forgotten. The system message, options and forms stay.",
    ),
    "drop": Command(
        "[N]",
        "forget the N oldest exchanges",
        _drop,
        "It makes room when the context is nearly full. The chat offers it when it is full.",
    ),
    "save": Command(
        "FILE",
        "write messages and settings to a JSON file",
        _save,
        "A file that is not a saved conversation is not overwritten. The last chat is kept "
        "without this, too: mlxgen.generate --resume goes on with it.",
    ),
    "load": Command(
        "FILE",
        "continue a saved conversation",
        _load,
        "It replaces the messages, options and forms by those of the file.",
    ),
    "help": Command(
        "[COMMAND]", "show this list, or more about one", _help, "/help rewind, for example."
    ),
    "quit": Command("", "end the chat", _quit, "Ctrl-D does the same."),
}


def completions(line: str) -> list[str]:
    """What the last word of a line can be: commands, and the first argument of some."""
    name, space, rest = line.partition(" ")
    if not line.startswith("/") or " " in rest:
        return []
    if not space:
        return [f"/{each} " for each in COMMANDS if f"/{each}".startswith(name)]
    if name in ("/save", "/load", "/json", "/lark"):
        files = Path(rest).parent if rest else Path()
        try:
            found = sorted(files.expanduser().iterdir())[:1000]
        except OSError:
            return []
        at = rest[: len(rest) - len(rest.rpartition("/")[2])]
        words = [f"{at}{file.name}{'/' if file.is_dir() else ''}" for file in found]
    else:
        known = {
            "/set": SETTABLE,
            "/help": COMMANDS,
            "/system": ["off"],
            "/regex": ["off"],
            "/tokens": ["all"],
        }
        words = list(known.get(name, ()))
    return [word for word in words if word.startswith(rest)]
