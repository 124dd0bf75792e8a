"""What a person types: lines that become messages, from a terminal or a pipe.

Owns the rules for messages of several lines, and the two ways to read a line. Must never know
commands or models. Invariant: each message is one ``Typed``, wherever its lines are broken, and
the end of the input also ends a message.

Several lines that are pasted at once are one message, and never a command. GNU readline says what
was pasted; without it, it is what waits already when a line has been read. A line that ends in a
backslash continues on the next one. A line that begins with three quotes begins a block, which ends
with a line that ends in three quotes; the text between is taken as it is. A line break right after
the first quotes, or right before the last, is not part of it.
"""

from __future__ import annotations

import contextlib
import select
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from types import ModuleType
from typing import BinaryIO, NamedTuple, TextIO

from ..errors import PromptError

QUOTES = '"""'
PROMPT, MORE = "> ", "... "
PASTE = 0.05  # seconds in which the next line of a paste has come


class Typed(NamedTuple):
    """A message; if ``quoted``, it was a block or pasted, and so is not a command."""

    text: str
    quoted: bool = False


class Composer:
    """Lines in, messages out. A pasted line may itself contain line breaks."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._in_block = False

    @property
    def is_open(self) -> bool:
        """Whether a message has begun and is not complete."""
        return bool(self._lines)

    def push(self, line: str) -> Typed | None:
        """Add a line without its line end; returns the message if it is complete now."""
        pasted = "\n" in line and not self._in_block and not line.startswith(QUOTES)
        if pasted:
            self._lines.append(line.rstrip("\n"))
            return self._complete()._replace(quoted=True)
        if not self._lines and line.startswith(QUOTES):
            self._in_block = True
            line = line[len(QUOTES) :]
        end = QUOTES if self._in_block else "\\"
        self._lines.append(line.removesuffix(end))
        return self._complete() if line.endswith(end) == self._in_block else None

    def flush(self) -> Typed | None:
        """The end of the input; returns the message that was not complete, if there is one."""
        return self._complete() if self.is_open else None

    def _complete(self) -> Typed:
        text, quoted = "\n".join(self._lines), self._in_block
        self._lines, self._in_block = [], False
        return Typed(text.removeprefix("\n").removesuffix("\n") if quoted else text, quoted)


@dataclass(frozen=True, slots=True)
class Reader:
    """Messages of the lines that ``line`` reads with a prompt; ``edit`` gives a text as the person
    edited it, or ``None`` if it cannot be shown for editing."""

    line: Callable[[str], str]
    edit: Callable[[str], str | None] = lambda text: None

    def read(self) -> Typed:
        """The next message; raises ``EOFError`` if there is none, and ``PromptError`` for a line
        that is not text. ``KeyboardInterrupt`` discards what was typed."""
        composer = Composer()
        while True:
            try:
                typed = composer.push(self.line(MORE if composer.is_open else PROMPT))
            except EOFError:
                typed = composer.flush()
                if typed is None:
                    raise
            if typed is not None:
                return typed


def pipe_reader(lines: BinaryIO, prompt: TextIO | None = None) -> Reader:
    """Lines of a pipe or a file; prompts for them are written to ``prompt``, if it is given."""
    numbers = count(1)

    def line(shown: str) -> str:
        if prompt is not None:
            print(shown, end="", file=prompt, flush=True)
        data = lines.readline()
        if not data:
            raise EOFError
        number = next(numbers)
        try:
            return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise PromptError(
                f"line {number} of the input is not UTF-8 text ({error.reason})"
            ) from error

    return Reader(line)


def terminal_reader(complete: Callable[[str], list[str]]) -> Reader:
    """Lines of a terminal, with editing and a history if ``readline`` is installed; ``complete``
    gives what the last word of a line can be."""
    readline = _readline()
    if readline is not None:
        _complete_with(readline, complete)
    marks_pastes = readline is not None and not _is_libedit(readline)

    def line(prompt: str) -> str:
        try:
            lines = [input(prompt)]
            while not marks_pastes and _more_is_there():
                lines.append(input(""))
            return "\n".join(lines)
        except EOFError:
            print(file=sys.stdout, flush=True)  # what follows gets a line of its own
            raise
        except UnicodeDecodeError as error:
            raise PromptError(f"this line is not UTF-8 text ({error.reason})") from error

    def edit(text: str) -> str | None:
        if readline is None:
            return None
        if _is_libedit(readline):  # it empties the line before it is shown
            if "\n" not in text:
                readline.add_history(text)
                print("the arrow up brings the message back", file=sys.stderr)
            return None
        readline.set_startup_hook(lambda: readline.insert_text(text))
        try:
            return line(PROMPT)
        except EOFError:
            return ""
        finally:
            readline.set_startup_hook(None)

    return Reader(line, edit)


def _readline() -> ModuleType | None:
    with contextlib.suppress(ImportError):
        import readline

        readline.set_auto_history(True)
        if not _is_libedit(readline):
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off
        return readline
    return None


def _is_libedit(readline: ModuleType) -> bool:
    return "libedit" in (readline.__doc__ or "")


def _more_is_there() -> bool:
    """Whether a further line waits already, as after a paste."""
    try:
        return bool(select.select([sys.stdin], [], [], PASTE)[0])
    except (OSError, ValueError):  # not a file of the system
        return False


def _complete_with(readline: ModuleType, complete: Callable[[str], list[str]]) -> None:
    """Have the tab key complete lines."""

    def nth(word: str, n: int) -> str | None:
        found = complete(readline.get_line_buffer()[: readline.get_endidx()])
        return found[n] if n < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(nth)
    tab = "bind ^I rl_complete" if _is_libedit(readline) else "tab: complete"
    readline.parse_and_bind(tab)
