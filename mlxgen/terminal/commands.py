"""The chat's commands: lines that begin with a slash.

Owns the commands with their help, the reading of their arguments, and the files that they write.
Must never know how an answer is made or shown. Invariant: a command does everything it says, or
raises and changes nothing.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from ..errors import MlxgenError, OptionError
from ..words import counted, shortened
from . import asked
from .answer import Answer
from .branches import write_side_by_side
from .chat import TerminalChat
from .conversation import SETTABLE, Conversation
from .odds import LEAST, Painter, least_sure, legend
from .reader import QUOTES

_AT = re.compile(rf"@(\d{{1,{asked.DIGITS}}})(?:\s+|$)")
Run = Callable[[TerminalChat, str], None]


class Command(NamedTuple):
    """``argument`` and ``help`` are what the list shows, and ``more`` is what ``/help COMMAND``
    adds; ``run`` gets the argument that was typed."""

    argument: str
    help: str
    more: str
    run: Run


COMMANDS: dict[str, Command] = {}
"""Every command, in the order of the list: what can be run, completed and asked about."""


def _command(argument: str = "") -> Callable[[Run], Run]:
    """Makes a function a command; its docstring has ``help`` and, after an empty line, ``more``."""

    def added(run: Run) -> Run:
        brief, _, more = inspect.cleandoc(run.__doc__ or "").partition("\n\n")
        COMMANDS[run.__name__.strip("_")] = Command(argument, brief, " ".join(more.split()), run)
        return run

    return added


def run_command(chat: TerminalChat, text: str) -> None:
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
    command.run(chat, argument)


def completions(line: str) -> list[str]:
    """What the last word of a line can be: a command, or the first argument of one."""
    name, space, rest = line.partition(" ")
    if not line.startswith("/") or " " in rest:
        return []
    if not space:
        return [f"/{each} " for each in COMMANDS if f"/{each}".startswith(name)]
    command = COMMANDS.get(name[1:])
    kinds = re.findall(r"\w+", "" if command is None else command.argument)
    files = asked.files_beside(rest) if "FILE" in kinds else ()
    known = {"FILE": files, "NAME": SETTABLE, "COMMAND": COMMANDS}
    words = [w for kind in kinds for w in known.get(kind, [kind] if kind.islower() else ())]
    return [word for word in words if word.startswith(rest)]


# ---- the last answer ----


@_command()
def _undo(chat: TerminalChat, _: str) -> None:
    """take back the last exchange

    It removes your last message and its answer. /edit changes the message instead.
    """
    taken, chat.conversation = chat.conversation.last, chat.conversation.undone()
    chat.note(f"took back: {shortened(taken)}")


@_command()
def _retry(chat: TerminalChat, _: str) -> None:
    """answer the last message again

    The new answer is drawn with other random numbers; at temperature 0 it is the same. The old one
    stays as a branch: see /branches.
    """
    chat.conversation.again()  # raises if there is none
    _note_repeating(chat, "the answer stays the same", "/set temperature 0.8")
    chat.retry()


@_command("[N|all]")
def _tokens(chat: TerminalChat, argument: str) -> None:
    """the odds of the last answer's tokens

    It shows the answer tinted by probability, and lists its N least likely tokens with their
    numbers and what else was likely there. The numbers are for /rewind @N and /instead @N.
    """
    last = chat.last
    given = {"": LEAST, "all": len(last.spoken)}
    count = given[argument] if argument in given else asked.number_in("/tokens", argument)
    chat.note(f"probability: {legend(colours=chat.colours)}")
    chat.show(Painter(colours=chat.colours).push)
    for line in least_sure(last.spoken, last.piece, count, columns=chat.columns):
        chat.note(line)


@_command('N|"TEXT"|@N')
def _rewind(chat: TerminalChat, argument: str) -> None:
    """take back N tokens, or from there on

    /rewind 5 takes back the last 5 tokens of the answer, /rewind "Paris" everything from the last
    Paris on, and /rewind @12 everything from token 12 on. Then /continue goes on from there, and
    /instead TEXT puts something else there first.
    """
    last = chat.last
    place, rest = _place(last, argument)
    if rest:
        text = asked.quoted("/rewind", rest)
        is_count = rest == text and rest.isdecimal()
        place = last.last(asked.number_in("/rewind", rest)) if is_count else last.before(text)
    if place is None:
        expected = 'a number of tokens, a "text" to go back before, or @ and the number of a token'
        raise OptionError("/rewind", f"expected {expected}")
    gone = "".join(last.texts(last.spoken)[place:])
    chat.take(last.back(place))
    chat.show()
    what = repr(shortened(gone)) if gone else "nothing but the end"
    chat.note(
        f"(took back: {what}; /continue goes on from here, "
        "/instead TEXT puts something else here, and a message answers what is left)"
    )


@_command()
def _continue(chat: TerminalChat, _: str) -> None:
    """go on with the last answer

    It goes on after Ctrl-C, after /rewind, and after an answer that was cut off. Settings that you
    have changed since hold for what follows.
    """
    last = chat.last
    if last.there(len(last.chunks)) is not None:
        _note_repeating(chat, "the same comes again", "/instead TEXT")
    chat.answer(chat.conversation.again(), last)


@_command("[@N] TEXT")
def _instead(chat: TerminalChat, argument: str) -> None:
    """put another text there, and go on

    /instead @12 Rome puts Rome in the place of token 12; without @N, at the end of what /rewind
    left. A text in double quotes is taken exactly as it is; otherwise it gets the space that the
    word before it needs.
    """
    last = chat.last
    place, rest = _place(last, argument)
    text = asked.quoted("/instead", rest)
    if not text:
        raise OptionError("/instead", "expected a token or a text, such as /instead @3 Rome")
    if place is None:
        if last.finish_reason is not None:
            raise OptionError(
                "/instead",
                "the answer has ended; say where, such as /instead @3 Rome (/tokens "
                "shows the numbers), or go back with /rewind first",
            )
        place = last.last(0)
    tokens = last.spelled(place, text, exact=text != rest)
    chat.answer(chat.conversation.again(), last.back(place), tokens)


@_command("[N]")
def _branches(chat: TerminalChat, argument: str) -> None:
    """the versions of the last answer; go to one

    /rewind, /instead and /retry leave the version before them behind. /branches draws all of them
    as a tree, with the odds where they part; /branches 1 goes back to the first. The next message
    keeps the version that is shown.
    """
    last = chat.last
    if argument:
        branches = last.branches.goes_to(asked.number_in("/branches", argument))
        chat.take(last := replace(last, branches=branches))
    for line in last.branches.tree(last.texts, columns=chat.columns):
        chat.note(line)
    if argument:
        chat.show()


@_command("[N [N]]")
def _compare(chat: TerminalChat, argument: str) -> None:
    """two versions side by side

    /compare 1 3 shows branches 1 and 3, /compare 1 shows branch 1 and the current one, with what
    differs marked.
    """
    last, numbers = chat.last, argument.split()
    if len(numbers) > 2:
        raise OptionError("/compare", "expected two branches at most, such as /compare 1 2")
    given = [asked.number_in("/compare", number) for number in numbers] or [last.branches.other()]
    if len(given) == 1:
        given.append(last.branches.here)
    sides = [(f"[{n}]", "".join(last.texts(last.branches.version(n)))) for n in sorted(given)]
    write_side_by_side(sides, chat.notes, colours=chat.colours)


@_command("[TEXT]")
def _edit(chat: TerminalChat, argument: str) -> None:
    """change the last message and answer it again

    Without TEXT, the message comes up for editing. An empty line leaves it as it was.
    """
    message = chat.conversation.last
    text: str | None = argument or chat.reader.edit(message)
    if text is None:
        chat.note(f"the message was:\n{message}\nwrite the new one:")
        text = chat.reader.read().text
    if not text.strip():
        chat.note("nothing changed")
        return
    chat.answer(chat.conversation.again(text))


def _note_repeating(chat: TerminalChat, what: str, instead: str) -> None:
    """Say so if the settings make the same text come again."""
    values = chat.conversation.values()
    if values["temperature"] == 0:
        chat.note(f"the temperature is 0, so {what}; try {instead}")
    elif values["seed"] is not None:
        chat.note(f"the seed is set, so {what}; try /set seed default")


def _place(last: Answer, argument: str) -> tuple[int | None, str]:
    """The place that ``@`` and a number name, if given, and the rest of the argument."""
    found = _AT.match(argument)
    if found is None:
        return None, argument
    return last.at(int(found[1])), argument[found.end() :]


# ---- how answers are made ----


@_command("[TEXT|off]")
def _system(chat: TerminalChat, argument: str) -> None:
    """show or set the system message

    It holds from the next answer on, for the whole conversation: /system Answer in French.
    """
    if argument:
        text = None if argument in asked.OFF else argument
        chat.conversation = chat.conversation.with_system(text)
    chat.note(f"system message: {chat.conversation.system or 'none'}")


@_command("[NAME [VALUE]]")
def _set(chat: TerminalChat, argument: str) -> None:
    r"""show or set an option, such as /set temperature 0.3

    /set lists the options with their values, /set temperature shows one, /set temperature 0.3
    changes it and /set temperature default resets it. A value is JSON, or else plain text: /set
    stop "\n" and /set banned however both work.
    """
    name, _, value = argument.partition(" ")
    name = name.replace("-", "_")
    if value.strip():
        changed = chat.conversation.set(name, asked.read_value(value.strip()))
        chat.conversation = chat.answerer.checked(changed)
    values = chat.conversation.values()
    if name and name not in values:
        chat.conversation.set(name, None)  # raises, and says why
    for known in [name] if name else values:
        star = "*" if known in chat.conversation.settings else " "
        chat.note(f"{star} {known:<20} {json.dumps(values[known], default=str)}")
    if not name:
        chat.note("* was set here; /set NAME VALUE sets an option, /set NAME default resets it")


def _form(kind: str, chat: TerminalChat, argument: str) -> None:
    if argument:
        source = None if argument in asked.OFF else asked.read_form(kind, f"/{kind}", argument)
        chat.conversation = chat.answerer.checked(chat.conversation.require(kind, source))
    source = chat.conversation.forms.get(kind)
    shown = source if isinstance(source, str) else json.dumps(source, ensure_ascii=False)
    chat.note(f"{kind}: {'off' if source is None else shown}")


@_command("[FILE|off]")
def _json(chat: TerminalChat, argument: str) -> None:
    """answers are JSON that matches a schema

    /json person.json reads the schema from a file; /json {...} takes it from the line. It holds for
    the answer and not for the thinking before it, until /json off.
    """
    _form("json", chat, argument)


@_command("[PATTERN|off]")
def _regex(chat: TerminalChat, argument: str) -> None:
    """answers match a regular expression

    /regex (yes|no) allows these two answers, until /regex off.
    """
    _form("regex", chat, argument)


@_command("[FILE|off]")
def _lark(chat: TerminalChat, argument: str) -> None:
    """answers follow a Lark grammar

    /lark poem.lark reads the grammar from a file. It holds until /lark off.
    """
    _form("lark", chat, argument)


# ---- the conversation ----


@_command()
def _show(chat: TerminalChat, _: str) -> None:
    """show the conversation

    Every message as the model sees it, with its role.
    """
    for message in chat.conversation.messages:
        chat.note(f"[{message['role']}] {message['content']}")
    if not chat.conversation.messages:
        chat.note("no messages yet")


@_command()
def _clear(chat: TerminalChat, _: str) -> None:
    """start over; the settings stay

    All messages are forgotten. The system message, options and forms stay.
    """
    chat.conversation = replace(chat.conversation, said=())
    chat.note("a new conversation; the settings stay")


@_command("[N]")
def _drop(chat: TerminalChat, argument: str) -> None:
    """forget the N oldest exchanges

    It makes room when the context is nearly full. The chat offers it when it is full.
    """
    count = asked.number_in("/drop", argument or "1")
    before, left = chat.conversation, chat.conversation.without(count)
    freed = chat.answerer.count(before) - chat.answerer.count(left)
    chat.conversation = left
    named = "; ".join(map(shortened, before.asked[:count]))
    chat.note(f"dropped, which frees {counted(freed, 'token')}: {named}")


@_command("FILE")
def _save(chat: TerminalChat, argument: str) -> None:
    """write messages and settings to a JSON file

    A file that is not a saved conversation is not overwritten. The last chat is kept without this,
    too: mlxgen.generate --resume goes on with it.
    """
    path = asked.path_of("/save", argument)
    try:
        if path.exists():
            Conversation.of_json(asked.read_json("/save", argument))
        asked.replaced(path, chat.conversation.as_text())
    except OSError as error:
        raise OptionError("/save", f"{path} cannot be written: {error.strerror}") from error
    except MlxgenError as error:
        problem = "exists and is not a conversation; choose another name"
        raise OptionError("/save", f"{path} {problem}") from error
    chat.note(f"saved to {path}: {counted(len(chat.conversation.asked), 'exchange')}")


@_command("FILE")
def _load(chat: TerminalChat, argument: str) -> None:
    """continue a saved conversation

    It replaces the messages, options and forms by those of the file.
    """
    data = asked.read_json("/load", argument)
    path = asked.path_of("/load", argument)
    try:
        loaded = replace(
            Conversation.of_json(data),
            defaults=chat.conversation.defaults,
            allow_control_tokens=chat.conversation.allow_control_tokens,
        )
        chat.conversation = chat.answerer.checked(loaded)
    except MlxgenError as error:
        raise OptionError("/load", f"{path}: {error}") from error
    chat.note(f"loaded {path}: {counted(len(loaded.asked), 'exchange')}")


@_command("[COMMAND]")
def _help(chat: TerminalChat, argument: str) -> None:
    """show this list, or more about one

    /help rewind, for example.
    """
    name = argument.removeprefix("/")
    if name and name not in COMMANDS:
        run_command(chat, f"/{name}")  # raises, and says what is close
    for each in [name] if name else COMMANDS:
        command = COMMANDS[each]
        chat.note(f"/{each} {command.argument:<16}".ljust(26) + command.help)
    if name:
        chat.note(COMMANDS[name].more)
    else:
        chat.note(
            f"A line that ends in \\ continues; {QUOTES} begins and ends a block of lines.\n"
            "Ctrl-C stops an answer, Ctrl-D ends the chat, Tab completes commands.\n"
            "/help COMMAND says more about one, such as /help rewind."
        )


@_command()
def _quit(chat: TerminalChat, _: str) -> None:
    """end the chat

    Ctrl-D does the same.
    """
    raise EOFError
