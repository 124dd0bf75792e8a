"""A person's input: lines that become messages, from a terminal or a pipe.

Owns the rules for messages of several lines, and the two ways to read a line. Must never know
commands or models. Invariant: each message is one ``Typed``, wherever its lines are broken, and
the end of the input also ends a message.

Several lines that are pasted at once are one message, and never a command. GNU readline reports a
paste; without it, lines that wait when one has been read count as one. A line that ends in a
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
PASTE = 0.05  # seconds within which the next line of a paste arrives


class Typed(NamedTuple):
    """A message; if ``quoted``, it was a block or pasted, and so is not a command."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True)
class Reader:
    """Messages made of the lines that ``line`` reads with a prompt; ``edit`` gives a text as the
    person edited it, or ``None`` if it cannot be shown for editing."""

    line: Callable[[str], str]
    edit: Callable[[str], str | None] = lambda text: None

    def read(self) -> Typed:
        """The next message; raises ``EOFError`` if there is none, and ``PromptError`` for a line
        that is not text. ``KeyboardInterrupt`` discards what was typed."""
        lines: list[str] = []
        end = "\\"  # of a line that goes on; of the last one in a block
        while True:
            try:
                line = self.line(MORE if lines else PROMPT)
            except EOFError:
                if not lines:
                    raise
                break
            if not lines and line.startswith(QUOTES):
                end, line = QUOTES, line.removeprefix(QUOTES)
            elif "\n" in line and end != QUOTES:  # pasted
                return Typed("\n".join([*lines, line.rstrip("\n")]), quoted=True)
            lines.append(line.removesuffix(end))
            if line.endswith(end) == (end == QUOTES):
                break
        text, quoted = "\n".join(lines), end == QUOTES
        return Typed(text.removeprefix("\n").removesuffix("\n") if quoted else text, quoted)


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
    libedit = readline is not None and "libedit" in (readline.__doc__ or "")
    if readline is not None:
        readline.set_completer_delims(" ")
        readline.set_completer(
            lambda word, n: dict(
                enumerate(complete(readline.get_line_buffer()[: readline.get_endidx()]))
            ).get(n)
        )
        readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
        if not libedit:
            readline.parse_and_bind("set enable-bracketed-paste on")  # Python turns it off

    def line(prompt: str) -> str:
        try:
            lines = [input(prompt)]
            while (readline is None or libedit) and _more_is_there():
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
        if libedit:  # it empties the line before it is shown
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
        return readline
    return None


def _more_is_there() -> bool:
    """Whether a further line waits already, as after a paste."""
    with contextlib.suppress(OSError, ValueError):  # it is not a file of the system
        return bool(select.select([sys.stdin], [], [], PASTE)[0])
    return False
