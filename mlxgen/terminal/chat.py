"""A conversation on the standard streams: ``python -m mlxgen.generate --chat``.

Owns the loop of reading and answering, and how an answer is shown. Must never know how a line is
read, which commands there are, or how an answer is made. Invariants: answers, with a line end after
each, go to standard output, and everything else to standard error; outside a terminal there are no
escape sequences, only the text; whatever happens to an answer, every message of the conversation
has one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..chat.answer import AnswerReader
from ..chat.events import Reasoning
from ..errors import MachineError, MlxgenError, StateError
from ..language_model import LanguageModel
from ..tokens import Token
from ..words import broken, counted, shortened
from .answer import Answer, Answerer, ContextError
from .asked import check_chats, forms_of, template_variables
from .conversation import Conversation, keep, resumed
from .interrupt import Brake
from .odds import Painter, legend, wants_colour
from .reader import Typed, pipe_reader, terminal_reader
from .report import report, say, unheld
from .screens import PlainScreen, Screen, Style, Wrapper, plain, width

FULL = 0.75  # of the context: the most that is in use after exchanges were dropped


class TerminalChat:
    """See the module. Call ``run`` once.

    - ``options``: those set for all answers; ``defaults``: the model's values for the others.
    - ``command`` runs a line that begins with a slash; ``EOFError`` from it ends the chat.
      ``complete`` says what the last word of a line can be.

    The chat ``is_typed`` if a person is typing, who is greeted, told how full the context is, asked
    what to drop from it, and can try again after an error. Under ``mlx.launch``, which passes on
    nothing that is typed after Ctrl-C, Ctrl-C ends the conversation, too.
    """

    def __init__(
        self,
        lm: LanguageModel,
        options: Mapping[str, Any],
        defaults: Mapping[str, Any],
        arguments: argparse.Namespace,
        *,
        command: Callable[[TerminalChat, str], None],
        complete: Callable[[str], list[str]],
    ) -> None:
        check_chats(lm)
        self.answerer, self._arguments, self._command = Answerer(lm), arguments, command
        begun = resumed() if arguments.resume else Conversation()
        options = {name: value for name, value in options.items() if name != "filters"}
        self.conversation = replace(
            begun.with_system(arguments.system or begun.system),
            template={**begun.template, **template_variables(arguments)},
            defaults=defaults,
            allow_control_tokens=arguments.allow_control_tokens,
        ).configured({**begun.settings, **options}, {**begun.forms, **forms_of(arguments)})
        self.is_typed = sys.stdin.isatty()
        if self.is_typed and sys.stdout.isatty():
            self.reader = terminal_reader(complete)
        else:
            prompted = self.is_typed or arguments.launched
            self.reader = pipe_reader(sys.stdin.buffer, sys.stderr if prompted else None)
        self.out, self.notes = sys.stdout, sys.stderr
        self.colours = wants_colour(self.notes, os.environ)
        self._last: Answer | None = None

    def run(self, first: str | None = None, *, notice: str | None = None) -> int:
        """Converse until the input ends, beginning with ``first``; returns the exit status.

        ``notice`` is shown once the settings are checked.
        """
        self.status = 0
        launched, answerer = self._arguments.launched, self.answerer
        if self._arguments.resume:
            say(f"going on after: {shortened(self.conversation.last)}")
        if self._arguments.show_probs:
            why = "this is not a terminal or NO_COLOR is set; /tokens has marks"
            tints = wants_colour(self.out, os.environ)
            self.note(f"probability: {legend()}" if tints else f"no tints, because {why}")
        answerer.checked(self.conversation)
        if notice is not None:
            self.note(notice)
        if self.is_typed or launched:
            end = "/quit" if launched else "Ctrl-D"
            self.note(f"{answerer.lm.name}: /help lists the commands, {end} ends")
        begun = Typed("" if first is None else first, quoted=True)
        going = self._guarded(lambda: begun)
        while going:
            going = self._guarded(self.reader.read)
        if self.is_typed and self.conversation.said:
            self.note("(the chat is kept; --resume goes on with it)")
        return self.status

    def note(self, line: str) -> None:
        """Tell the person something."""
        columns = self.columns
        print(line if columns is None else broken(line, columns), file=self.notes, flush=True)

    @property
    def columns(self) -> int | None:
        """The width of the terminal that shows notes, now; ``None`` without one."""
        return width() if self.notes.isatty() else None

    @property
    def last(self) -> Answer:
        """The last answer. Raises ``StateError`` if there is none that can be taken back."""
        last = self._last
        if last is None or not last.exchange or last.exchange != self.conversation.said[-2:]:
            raise StateError(
                "there is no answer that can be taken back; write a message, or answer the last "
                "one again with /retry"
            )
        return last

    def take(self, answer: Answer, asked: Conversation | None = None) -> None:
        """Add an answer to the conversation ``asked``, or put it in the place of the last one."""
        asked = asked or self.conversation.again()
        self.conversation = asked.answered(answer.said(), answer.said(Reasoning))
        self._last = replace(answer, exchange=self.conversation.said[-2:])

    def retry(self) -> None:
        """Answer the last message again; the answer that it had stays as a branch."""
        last = self._last
        if last is not None and last.exchange == self.conversation.said[-2:]:
            last = replace(last, branches=last.branches.leaves())
        else:
            last = None
        self.answer(self.conversation.again(), last)

    def show(self, style: Style | None = None) -> None:
        """Show the last answer as it stands: tinted in a style, or with dimmed reasoning."""
        last = self.last
        if style is None and not self.colours:
            self.note("".join(last.texts(last.chunks)))
            return
        screen = PlainScreen(self.notes, style or plain, tints=style is not None)
        for chunk, events in last.readings(last.chunks):
            screen.show(chunk, events)
        screen.end()

    # ---- one message ----

    def _guarded(self, read: Callable[[], Typed]) -> bool:
        """Read a message and do what it asks for; returns whether to continue."""
        try:
            typed = read()
            if not typed.quoted and typed.text.startswith("/"):
                self._command(self, typed.text)
            elif typed.text.strip():
                self.answer(self.conversation.ask(typed.text))
        except EOFError:
            return False
        except KeyboardInterrupt:
            if self._arguments.launched or not self.is_typed:
                raise
            self.note("\n(Ctrl-D or /quit ends)")
        except MachineError:
            raise
        except MlxgenError as error:
            self.status = 0 if self.is_typed else 2
            self.note(f"error: {' '.join(str(error).split())}")
        finally:
            self._keep_file()
        return True

    def _keep_file(self) -> None:
        """Keep the conversation for ``--resume``, if a person holds it."""
        if self.is_typed and self.conversation.said:
            keep(self.conversation)

    # ---- one answer ----

    def answer(
        self, asked: Conversation, last: Answer | None = None, then: Sequence[Token] = ()
    ) -> None:
        """Stream the answer to the waiting message and add it to the conversation; the arguments
        are those of ``Answerer.begin``."""
        brake, stream, said = Brake(), None, False
        try:
            with brake.ready():
                try:
                    stream, answer, chunks = self.answerer.begin(asked, last, then)
                except ContextError as error:
                    asked = self._dropping(asked, error)
                    stream, answer, chunks = self.answerer.begin(asked, last, then)
                screen, reader = self._screen(exact=bool(asked.forms)), AnswerReader(answer.reading)
                try:
                    for chunk in chunks:
                        screen.show(chunk, reader.push(chunk)[0])
                    for chunk in stream:
                        brake.runs = True
                        chunks.append(chunk)
                        screen.show(chunk, reader.push(chunk, stream.usage)[0])
                        if brake.pressed:
                            break
                finally:
                    ended = stream.finish_reason is not None
                    with stream:
                        stream.keep()
                    if not ended:
                        screen.show(None, reader.cancel(stream.usage))
                    screen.end()
        except KeyboardInterrupt:
            brake.pressed = True
        finally:
            if stream is not None:
                branches = answer.branches.shows(chunks)
                answer = replace(answer, branches=branches, usage=stream.usage)
                said = bool(answer.said() or answer.said(Reasoning) or answer.finish_reason)
                if said:
                    self.take(answer, asked)
        self._keep_file()
        if not said:
            self.note("(stopped before the answer began; the conversation is unchanged)")
        else:
            self._conclude(self.last, stopped=brake.pressed)
        if brake.pressed and self._arguments.launched:
            raise KeyboardInterrupt

    def _screen(self, *, exact: bool) -> Screen:
        """The screen for an answer; in an ``exact`` one every space counts, as in JSON."""
        if not wants_colour(self.out, os.environ):
            return PlainScreen(self.out, notes=self.notes)
        if self._arguments.show_probs:
            return PlainScreen(self.out, Painter().push, tints=True)
        if exact or not self.out.isatty():
            return PlainScreen(self.out)
        if self._arguments.as_written:
            return PlainScreen(self.out, Wrapper().push)
        from .markdown import MarkdownScreen  # slow to import

        return MarkdownScreen(self.out)

    def _conclude(self, answer: Answer, *, stopped: bool) -> None:
        """Say how an answer ended, if it was cut off, and how full the context is."""
        context = self.answerer.lm.max_context
        if stopped:
            self.note("(stopped; /continue goes on)")
        if answer.finish_reason == "length" and context is not None and answer.used >= context:
            self.note(
                f"(the context of {context} tokens is full; /drop forgets the "
                "oldest exchanges, so that /continue goes on; /undo takes back the last one, "
                "/clear starts over)"
            )
        elif answer.finish_reason == "length":
            count = counted(len(answer.chunks), "token")
            self.note(
                f"(cut off after {count}; /continue goes on, /set max_tokens default allows more)"
            )
        for line in unheld(answer.usage):
            self.note(f"({line})")
        if self._arguments.verbose:
            for line in report(answer.usage, answer.chunks[-1] if answer.chunks else None):
                self.note(line)
        if self.is_typed:
            of = "" if context is None else f" of {context}"
            left = "" if context is None else f", {max(0, context - answer.used)} left"
            line = f"(context: {answer.used}{of} tokens used, {answer.usage.cached_tokens} cached"
            self.note(f"\x1b[2m{line}{left})\x1b[0m" if self.colours else f"{line}{left})")

    # ---- the context ----

    def _dropping(self, asked: Conversation, error: ContextError) -> Conversation:
        """The conversation without the oldest exchanges, so that an answer fits, if the person
        agrees to drop these; otherwise raises the error."""
        most, before = self.answerer.lm.max_context or 0, asked.asked[:-1]
        if not self.is_typed or not before:
            raise error
        tokens = self.answerer.count(asked)
        for count in range(1, len(before) + 1):
            fewer = asked.without(count)
            left = self.answerer.count(fewer)
            if left <= FULL * most:
                break
        if left >= most:
            raise error
        named = "".join(f"\n  {shortened(message)}" for message in before[:count])
        what = "exchange" if count == 1 else f"{count} exchanges"
        freed = counted(tokens - left, "token")
        self.note(
            f"the conversation has {tokens} tokens, and the context holds {most}, including the "
            f"answer. Drop the oldest {what}, which frees {freed}? (yes or no)"
            f"{named}"
        )
        while (reply := self.reader.read().text.strip().lower()) not in ("y", "yes"):
            if reply in ("n", "no"):
                raise error
            self.note("yes or no?")
        return fewer
