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
from types import ModuleType
from typing import BinaryIO, NamedTuple, Protocol, TextIO

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

    def read(self, line: Callable[[str], str]) -> Typed:
        """A message of the lines that ``line`` reads with a prompt; its ``EOFError`` ends it."""
        while True:
            try:
                typed = self.push(line(MORE if self.is_open else PROMPT))
            except EOFError:
                typed = self.flush()
                if typed is None:
                    raise
            if typed is not None:
                return typed

    def _complete(self) -> Typed:
        text, quoted = "\n".join(self._lines), self._in_block
        self._lines, self._in_block = [], False
        return Typed(text.removeprefix("\n").removesuffix("\n") if quoted else text, quoted)


class Reader(Protocol):
    """Where messages come from."""

    def read(self) -> Typed:
        """The next message; raises ``EOFError`` if there is none."""

    def edit(self, text: str) -> str | None:
        """``text`` as the person edited it; ``None`` if it cannot be shown for editing."""


class PipeReader:
    """Lines of a pipe or a file; prompts for them are written to ``prompt``, if it is given."""

    def __init__(self, lines: BinaryIO, prompt: TextIO | None = None) -> None:
        self._lines = lines
        self._prompt = prompt
        self._number = 0

    def read(self) -> Typed:
        """As ``Reader.read``; raises ``PromptError`` for a line that is not text."""
        return Composer().read(self._line)

    def edit(self, text: str) -> str | None:
        return None

    def _line(self, prompt: str) -> str:
        if self._prompt is not None:
            print(prompt, end="", file=self._prompt, flush=True)
        data = self._lines.readline()
        if not data:
            raise EOFError
        self._number += 1
        try:
            return data.decode("utf-8").removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise PromptError(
                f"line {self._number} of the input is not UTF-8 text ({error.reason})"
            ) from error


class TerminalReader:
    """Lines of a terminal, with editing and a history if ``readline`` is installed."""

    def __init__(
        self,
        ask: Callable[[str], str] = input,
        complete: Callable[[str], list[str]] | None = None,
        waits: Callable[[], bool] | None = None,
    ) -> None:
        self._ask = ask
        self._readline = _readline()
        marked = self._readline is not None and not _is_libedit(self._readline)
        self._waits = waits or (_never if marked else _more_is_there)
        if self._readline is not None and complete is not None:
            _complete_with(self._readline, complete)

    def read(self) -> Typed:
        """As ``Reader.read``; ``KeyboardInterrupt`` discards what was typed."""
        return Composer().read(self._line)

    def edit(self, text: str) -> str | None:
        """As ``Reader.edit``."""
        readline = self._readline
        if readline is None:
            return None
        if _is_libedit(readline):  # it empties the line before it is shown
            if "\n" not in text:
                readline.add_history(text)
                print("the arrow up brings the message back", file=sys.stderr)
            return None
        readline.set_startup_hook(lambda: readline.insert_text(text))
        try:
            return self._line(PROMPT)
        except EOFError:
            return ""
        finally:
            readline.set_startup_hook(None)

    def _line(self, prompt: str) -> str:
        try:
            lines = [self._ask(prompt)]
            while self._waits():
                lines.append(self._ask(""))
            return "\n".join(lines)
        except EOFError:
            print(file=sys.stdout, flush=True)  # what follows gets a line of its own
            raise
        except UnicodeDecodeError as error:
            raise PromptError(f"this line is not UTF-8 text ({error.reason})") from error


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


def _never() -> bool:
    return False


def _more_is_there() -> bool:
    """Whether a further line waits already, as after a paste."""
    try:
        return bool(select.select([sys.stdin], [], [], PASTE)[0])
    except (OSError, ValueError):  # not a file of the system
        return False


def _complete_with(readline: ModuleType, complete: Callable[[str], list[str]]) -> None:
    """Have the tab key complete lines; ``complete`` gives what their last word can be."""

    def nth(word: str, n: int) -> str | None:
        found = complete(readline.get_line_buffer()[: readline.get_endidx()])
        return found[n] if n < len(found) else None

    readline.set_completer_delims(" ")
    readline.set_completer(nth)
    tab = "bind ^I rl_complete" if _is_libedit(readline) else "tab: complete"
    readline.parse_and_bind(tab)
