"""A conversation in a terminal, or over pipes: what a person says, and what is shown for it.

Owns the loop of reading and answering, and how an answer is shown. Must never know how a line
is read, which commands there are, how an answer is made, or how it is shown. Invariants: answers,
with a line end after each, go to ``out``, and everything else to ``notes``; outside a terminal
there are no escape sequences, and what is shown is the text; whatever happens to an answer, every
message of the conversation has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TextIO

from ..engine import Chunk, Usage
from ..errors import MachineError, MlxgenError, StateError
from ..tokens import Token
from ..words import broken, counted, shortened
from .answer import Answer, Answerer, Answering, ContextError
from .conversation import Conversation, keep
from .interrupt import Brake
from .reader import Reader, Typed
from .report import unheld
from .screens import Look, PlainScreen

Report = Callable[[Usage, Chunk | None], Iterable[str]]

FULL = 0.75  # of the context that is to be in use at most after exchanges are dropped


@dataclass(slots=True)
class TerminalChat:
    """See the module. Call ``run`` once; ``report`` gives further lines about each answer.

    ``command`` runs a line that begins with a slash, and ``EOFError`` from it ends the chat.
    ``look`` makes the screen of an answer; ``colours``: for what is said about it; ``columns``: how
    wide the terminal is that shows this, now, or ``None`` if none does.
    ``interactive``: a person is typing, who is greeted, told how full the context is, asked what to
    drop from it, and can try again after an error.
    ``launched``: by ``mlx.launch``, which passes on nothing that is typed after Ctrl-C, so Ctrl-C
    ends the conversation, too.
    """

    answerer: Answerer
    conversation: Conversation
    reader: Reader
    command: Callable[[TerminalChat, str], None]
    out: TextIO
    notes: TextIO
    interactive: bool = False
    launched: bool = False
    look: Look | None = None
    colours: bool = False
    columns: Callable[[], int | None] = lambda: None
    report: Report | None = None
    status: int = 0
    _last: Answer | None = None

    def run(self, first: str | None = None, *, notice: str | None = None) -> int:
        """Converse until the input ends, beginning with ``first``; returns the exit status.

        ``notice`` is shown once the settings are checked.
        """
        self.answerer.checked(self.conversation)
        if notice is not None:
            self.note(notice)
        if self.interactive or self.launched:
            end = "/quit" if self.launched else "Ctrl-D"
            self.note(f"{self.answerer.lm.name}: /help lists the commands, {end} ends")
        begun = Typed("" if first is None else first, quoted=True)
        going = self._guarded(lambda: begun)
        while going:
            going = self._guarded(self.reader.read)
        if self.interactive and self.conversation.exchanges:
            self.note("(the chat is kept; --resume goes on with it)")
        return self.status

    def note(self, line: str) -> None:
        """Tell the person something."""
        columns = self.columns()
        print(line if columns is None else broken(line, columns), file=self.notes, flush=True)

    @property
    def last(self) -> Answer:
        """The last answer. Raises ``StateError`` if there is none that can be taken back."""
        last, said = self._last, self.conversation.exchanges
        if last is None or not said or last.exchange != said[-1]:
            raise StateError(
                "there is no answer that can be taken back; write a message, or answer the last "
                "one again with /retry"
            )
        return last

    def take(self, answer: Answer, asked: Conversation | None = None) -> None:
        """Take an answer into the conversation that was ``asked``, by default in the place of the
        last one."""
        asked = asked or self.conversation.again()
        self.conversation = asked.answered(answer.text, answer.reasoning)
        self._last = replace(answer, exchange=self.conversation.last)

    def retry(self) -> None:
        """Answer the last message again; the answer that it has stays as a branch."""
        last = self._last
        if last is not None and last.exchange == self.conversation.last:
            last = replace(last, branches=last.branches.leaves(), budget=None)
        else:
            last = None
        self.answer(self.conversation.again(), last)

    def show(self) -> None:
        """Show the last answer as it stands, with its reasoning dimmed where that can be."""
        last = self.last
        if not self.colours:
            self.note("".join(last.texts(last.chunks)))
            return
        screen = PlainScreen(self.notes)
        for chunk, events in last.readings(last.chunks):
            screen.show(chunk, events)
        screen.end()

    def freed(self, count: int) -> int:
        """How many tokens dropping so many of the oldest exchanges frees."""
        return self._tokens(self.conversation) - self._tokens(self.conversation, count)

    # ---- one message ----

    def _guarded(self, read: Callable[[], Typed]) -> bool:
        """Read a message and do what it asks for; returns whether to continue."""
        try:
            typed = read()
            if not typed.quoted and typed.text.startswith("/"):
                self.command(self, typed.text)
            elif typed.text.strip():
                self.answer(self.conversation.ask(typed.text))
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
        finally:
            self._keep_file()
        return True

    def _keep_file(self) -> None:
        """Keep the conversation for ``--resume``, if a person holds it."""
        if self.interactive and self.conversation.exchanges:
            keep(self.conversation)

    # ---- one answer ----

    def answer(
        self, asked: Conversation, last: Answer | None = None, then: Sequence[Token] = ()
    ) -> None:
        """Stream the answer to the message that waits, and take it into the conversation; as
        ``Answerer.begin``."""
        brake, said = Brake(), False
        under_way: Answering | None = None
        try:
            with brake.ready():
                asked, under_way = self._begun(asked, last, then)
                self._stream(under_way, bool(asked.forms), brake)
        except KeyboardInterrupt:
            brake.pressed = True
        finally:
            if under_way is not None:
                answer = under_way.answer
                said = bool(answer.text or answer.reasoning or answer.finish_reason)
                if said:
                    self.take(answer, asked)
        self._keep_file()
        if not said:
            self.note("(stopped before the answer began; the conversation is unchanged)")
        else:
            self._conclude(self.last, stopped=brake.pressed)
        if brake.pressed and self.launched:
            raise KeyboardInterrupt

    def _begun(
        self, asked: Conversation, last: Answer | None, then: Sequence[Token]
    ) -> tuple[Conversation, Answering]:
        """An answer, perhaps to a conversation without the oldest exchanges, if the person agrees
        to drop these."""
        try:
            return asked, self.answerer.begin(asked, last, then)
        except ContextError as error:
            fewer = self._dropping(asked, error.tokens) if self.interactive else None
            if fewer is None:
                raise
            return fewer, self.answerer.begin(fewer, last, then)

    def _stream(self, answer: Answering, exact: bool, brake: Brake) -> None:
        screen = PlainScreen(self.out, notes=self.notes) if self.look is None else self.look(exact)
        try:
            for chunk, events in answer:
                brake.runs = True
                screen.show(chunk, events)
                if brake.pressed:
                    break
        finally:
            screen.show(None, answer.finish())
            screen.end()

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
        if self.report is not None:
            for line in self.report(answer.usage, answer.chunks[-1] if answer.chunks else None):
                self.note(line)
        if self.interactive:
            of = "" if context is None else f" of {context}"
            left = "" if context is None else f", {max(0, context - answer.used)} left"
            line = f"(context: {answer.used}{of} tokens used, {answer.usage.cached_tokens} cached"
            self.note(f"\x1b[2m{line}{left})\x1b[0m" if self.colours else f"{line}{left})")

    # ---- the context ----

    def _dropping(self, asked: Conversation, tokens: int) -> Conversation | None:
        """Offer to drop the oldest exchanges, so that an answer fits; what is left then."""
        most, said = self.answerer.lm.max_context or 0, asked.exchanges
        counts = range(1, len(said) + 1)
        count = next((n for n in counts if self._tokens(asked, n) <= FULL * most), len(said))
        left = self._tokens(asked, count)
        if not said or left >= most:
            return None
        named = "".join(f"\n  {shortened(exchange.message)}" for exchange in said[:count])
        what = "exchange" if count == 1 else f"{count} exchanges"
        freed = counted(tokens - left, "token")
        self.note(
            f"the conversation has {tokens} tokens, and the context holds {most}, including the "
            f"answer. Drop the oldest {what}, which frees {freed}? (yes or no)"
            f"{named}"
        )
        while (reply := self.reader.read().text.strip().lower()) not in ("y", "yes"):
            if reply in ("n", "no"):
                return None
            self.note("yes or no?")
        return asked.without(count)

    def _tokens(self, conversation: Conversation, dropped: int = 0) -> int:
        """How many a conversation has, perhaps without its oldest exchanges."""
        left = conversation.without(dropped) if dropped else conversation
        return self.answerer.count(left) if left.messages else 0
