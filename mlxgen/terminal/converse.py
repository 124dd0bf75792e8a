"""A conversation in a terminal, or over pipes: ``python -m mlxgen.generate --chat``.

Owns the loop of reading and answering, and how an answer is shown. Must never know how a line
is read, which commands there are, or how an answer is made. Invariants: the model's text, with a
line end after it, goes to ``out``, and everything else to ``notes``; without its escape sequences,
of which there are none outside a terminal, what is shown is the text; whatever happens to an
answer, every message of the conversation has one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TextIO

from ..chat.events import ChatEvent, Mark, Reasoning, Text
from ..engine import Chunk, Usage
from ..errors import MachineError, MlxgenError, PromptError
from ..model import LanguageModel
from .answer import Answer, Answerer
from .commands import is_command, run_command
from .conversation import Conversation
from .interrupt import Brake
from .painter import wants_colour
from .reader import PipeReader, Reader, TerminalReader, Typed

Report = Callable[[Usage, Chunk | None], Iterable[str]]

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


@dataclass(slots=True)
class TerminalChat:
    """See the module. Call ``run`` once; ``report`` gives further lines about each answer.

    ``interactive``: a person is typing, who is greeted and can try again after an error.
    ``launched``: by ``mlx.launch``, which passes on nothing that is typed after Ctrl-C, so Ctrl-C
    ends the conversation, too.
    """

    answerer: Answerer
    conversation: Conversation
    reader: Reader
    out: TextIO
    notes: TextIO
    interactive: bool = False
    launched: bool = False
    dims: bool = False
    report: Report | None = None
    status: int = 0

    def run(self, first: str | None = None, *, notice: str | None = None) -> int:
        """Converse until the input ends, beginning with ``first``; returns the exit status.

        ``notice`` is shown once the settings are checked.
        """
        self.answerer.check(self.conversation)
        if notice is not None:
            self.note(notice)
        if self.interactive or self.launched:
            end = "/quit" if self.launched else "Ctrl-D"
            self.note(f"{self.answerer.lm.name}: /help lists the commands, {end} ends")
        begun = Typed("" if first is None else first, quoted=True)
        going = self._guarded(lambda: begun)
        while going:
            going = self._guarded(self.reader.read)
        return self.status

    def note(self, line: str) -> None:
        """Tell the person something."""
        print(line, file=self.notes, flush=True)

    def check(self, conversation: Conversation) -> None:
        """Raise for settings that the model cannot follow."""
        self.answerer.check(conversation)

    def answer(self) -> None:
        """Stream the answer to the waiting message, and add it to the conversation."""
        brake, answer = Brake(), None
        try:
            with brake.ready(), self.answerer.begin(self.conversation) as answer:
                self._stream(answer, brake)
        except KeyboardInterrupt:
            brake.pressed = True
        finally:
            kept = self._settle(answer)
        if not kept:
            self.note("(stopped before the answer began; the conversation is unchanged)")
        elif brake.pressed:
            self.note("(stopped)")
        if answer is not None:
            self._conclude(answer)
        if brake.pressed and self.launched:
            raise KeyboardInterrupt

    # ---- one message ----

    def _guarded(self, read: Callable[[], Typed]) -> bool:
        """Read a message and do what it asks for; returns whether to continue."""
        try:
            typed = read()
            if not typed.quoted and is_command(typed.text):
                run_command(self, typed.text)
            elif typed.text.strip():
                self.conversation.ask(typed.text)
                self.answer()
        except EOFError:
            return False
        except KeyboardInterrupt:
            if self.launched or not self.interactive:
                raise
            self.note("\n(Ctrl-D or /quit ends)")
        except MachineError:
            raise
        except MlxgenError as error:
            self.status = 0 if self.interactive else 2
            self.note(f"error: {' '.join(str(error).split())}")
        return True

    # ---- one answer ----

    def _stream(self, answer: Answer, brake: Brake) -> None:
        screen = _Screen(self.out, self.dims)
        try:
            for events in answer:
                brake.runs = True
                screen.show(events)
                if brake.pressed:
                    break
        finally:
            screen.show(answer.finish())
            screen.end()

    def _settle(self, answer: Answer | None) -> bool:
        """Give the waiting message its answer, or withdraw it if there is none."""
        kept = answer is not None and bool(answer.text or answer.reasoning or answer.finish_reason)
        if answer is not None and kept:
            self.conversation.answered(answer.text, answer.reasoning)
        else:
            self.conversation.withdraw()
        return kept

    def _conclude(self, answer: Answer) -> None:
        """Say how an answer ended, if it was cut off."""
        if answer.finish_reason == "length" and answer.fills_context:
            self.note(
                f"(the context of {answer.max_context} tokens is full; /undo takes back the "
                "last exchange, /clear starts over)"
            )
        elif answer.finish_reason == "length":
            count = answer.usage.completion_tokens
            self.note(f"(cut off after {count} tokens; /set max_tokens default allows more)")
        if self.report is not None:
            for line in self.report(answer.usage, answer.last):
                self.note(line)


@dataclass(slots=True)
class _Screen:
    """Writes text, some of it dimmed."""

    out: TextIO
    dims: bool
    is_dim: bool = False
    ends_line: bool = True

    def show(self, events: Iterable[ChatEvent]) -> None:
        for event in events:
            if isinstance(event, Text | Reasoning | Mark):
                self._write(event.text, dim=not isinstance(event, Text))

    def _write(self, text: str, *, dim: bool) -> None:
        if self.dims and dim != self.is_dim:
            # An answer that must match something begins right after the mark
            apart = "" if dim or self.ends_line or text.startswith("\n") else "\n"
            self.out.write(_DIM if dim else _RESET + apart)
            self.is_dim = dim
        self.out.write(text)
        self.out.flush()
        self.ends_line = text.endswith("\n")

    def end(self) -> None:
        self.out.write((_RESET if self.is_dim else "") + ("" if self.ends_line else "\n"))
        self.out.flush()


def converse(
    lm: LanguageModel,
    conversation: Conversation,
    *,
    first: str | None = None,
    notice: str | None = None,
    report: Report | None = None,
    launched: bool = False,
) -> int:
    """Run a conversation on the standard streams of the process; returns the exit status.

    ``launched``: by ``mlx.launch``, which passes on what is typed at its terminal.
    """
    if not lm.tokenizer.has_chat_template:
        raise PromptError(f"{lm.name} has no chat template; use --raw to continue a text")
    typing = sys.stdin.isatty()
    reader: Reader
    if typing and sys.stdout.isatty():
        reader = TerminalReader()
    else:
        reader = PipeReader(sys.stdin.buffer, sys.stderr if typing or launched else None)
    chat = TerminalChat(
        Answerer(lm),
        conversation,
        reader,
        out=sys.stdout,
        notes=sys.stderr,
        interactive=typing,
        launched=launched,
        dims=wants_colour(sys.stdout, os.environ),
        report=report,
    )
    return chat.run(first, notice=notice)
