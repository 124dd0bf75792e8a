"""A conversation in a terminal, or over pipes: what a person says, and what is shown for it.

Owns the loop of reading and answering, and how an answer is shown. Must never know how a line
is read, which commands there are, how an answer is made, or how it is shown. Invariants: answers,
with a line end after each, go to ``out``, and everything else to ``notes``; outside a terminal
there are no escape sequences, and what is shown is the text; whatever happens to an answer, every
message of the conversation has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TextIO

from ..engine import Chunk, Usage
from ..errors import MachineError, MlxgenError, StateError
from ..words import broken, counted, shortened
from .answer import Answer, Answerer, ContextError
from .branches import Branches, write_side_by_side
from .conversation import Conversation, keep
from .interrupt import Brake
from .last import Last
from .odds import least_sure, tinted
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
    _last: Last | None = None

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
        try:
            going = self._guarded(lambda: begun)
            while going:
                going = self._guarded(self.reader.read)
        finally:
            self._let_go()
        if self.interactive and self.conversation.exchanges:
            self.note("(the chat is kept; --resume goes on with it)")
        return self.status

    def _keep_file(self) -> None:
        """Keep the conversation for ``--resume``, if a person holds it."""
        if self.interactive and self.conversation.exchanges:
            keep(self.conversation)

    def note(self, line: str) -> None:
        """Tell the person something."""
        columns = self.columns()
        print(line if columns is None else broken(line, columns), file=self.notes, flush=True)

    def check(self, conversation: Conversation) -> None:
        """Raise for settings that the model cannot follow."""
        self.answerer.check(conversation)

    def answer(self, asked: Conversation, branches: Branches | None = None) -> None:
        """Stream the answer to the message that waits, and take it into the conversation;
        ``branches``: the versions of it that were left behind."""
        self._run(asked, self.answerer.begin, branches or Branches())

    def retry(self) -> None:
        """Answer the last message again; the answer that it has stays as a branch."""
        asked, branches = self.conversation.again(), Branches()
        if self._last is not None and self._last.exchange == self.conversation.last:
            branches = self._last.branches.copy()
            branches.leaves()
        self.answer(asked, branches)

    def go_on(self) -> None:
        """Go on with the last answer from where it stands."""
        last = self.last
        resume = partial(self.answerer.resume, answer=last.answer)
        self._run(self.conversation.again(), resume, last.branches)

    @property
    def last(self) -> Last:
        """The last answer. Raises ``StateError`` if there is none that can be taken back."""
        last, said = self._last, self.conversation.exchanges
        if last is None or not said or last.exchange != said[-1]:
            raise StateError(
                "there is no answer that can be taken back; write a message, or answer the last "
                "one again with /retry"
            )
        return last

    def moved(self) -> None:
        """Take the last answer as it stands now into the conversation."""
        last, asked = self.last, self.conversation.again()
        self.conversation = asked.answered(last.answer.text, last.answer.reasoning)
        last.exchange = self.conversation.last

    def show(self) -> None:
        """Show the last answer as it stands, with its reasoning dimmed where that can be."""
        last = self.last
        if not self.colours:
            self.note(last.shown)
            return
        screen = PlainScreen(self.notes)
        for chunk, events in last.answer.readings(last.answer.chunks):
            screen.show(chunk, events)
        screen.end()

    def tokens(self, count: int) -> None:
        """Show the odds of the last answer's tokens, and list the least sure."""
        last = self.last
        readings = last.answer.readings(last.answer.chunks)
        for line in tinted(readings, colours=self.colours):
            self.note(line)
        for line in least_sure(last.chunks, last.piece, count, columns=self.columns()):
            self.note(line)

    def branches(self) -> None:
        """Show the versions of the last answer as a tree."""
        last = self.last
        for line in last.branches.tree(last.answer.texts, columns=self.columns()):
            self.note(line)

    def compare(self, left: int, right: int) -> None:
        """Show two versions of the last answer side by side."""
        sides = [(f"[{number}]", self.last.text(number)) for number in (left, right)]
        write_side_by_side(sides[0], sides[1], self.notes, colours=self.colours)
        self.notes.flush()

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

    # ---- one answer ----

    def _run(
        self, asked: Conversation, begin: Callable[[Conversation], Answer], branches: Branches
    ) -> None:
        brake, kept = Brake(), False
        answer: Answer | None = None
        try:
            with brake.ready():
                asked, answer = self._begun(asked, begin)
                if self._last is not None and self._last.answer is not answer:
                    self._let_go()  # two would hold the KV of the conversation twice
                self._stream(answer, bool(asked.forms), brake)
        except KeyboardInterrupt:
            brake.pressed = True
        finally:
            if answer is not None:
                kept = bool(answer.text or answer.reasoning or answer.finish_reason)
                self._last = Last(answer, self.answerer.lm.vocabulary, branches)
                if kept:
                    self.conversation = asked.answered(answer.text, answer.reasoning)
                    branches.shows(answer.chunks)
                    self._last.exchange = self.conversation.last
                else:
                    self._let_go()
        if not kept:
            self.note("(stopped before the answer began; the conversation is unchanged)")
        self._conclude(answer, brake, said=kept)

    def _begun(
        self, asked: Conversation, begin: Callable[[Conversation], Answer]
    ) -> tuple[Conversation, Answer]:
        """An answer, perhaps to a conversation without the oldest exchanges, if the person agrees
        to drop these."""
        try:
            return asked, begin(asked)
        except ContextError as error:
            fewer = self._dropping(asked, error.tokens) if self.interactive else None
            if fewer is None:
                raise
            return fewer, begin(fewer)

    def _stream(self, answer: Answer, exact: bool, brake: Brake) -> None:
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

    def _let_go(self) -> None:
        if self._last is not None:
            self._last.answer.close()
            self._last = None

    def _conclude(self, answer: Answer | None, brake: Brake, *, said: bool = True) -> None:
        """Say how an answer ended, if it was cut off, and how full the context is."""
        self._keep_file()
        if brake.pressed and said:
            self.note("(stopped; /continue goes on)")
        if answer is not None:
            if answer.finish_reason == "length" and answer.fills_context:
                self.note(
                    f"(the context of {answer.max_context} tokens is full; /drop forgets the "
                    "oldest exchanges, so that /continue goes on; /undo takes back the last one, "
                    "/clear starts over)"
                )
            elif answer.finish_reason == "length":
                count = counted(len(answer.tokens), "token")
                self.note(
                    f"(cut off after {count}; /continue goes on, "
                    "/set max_tokens default allows more)"
                )
            for line in unheld(answer.usage):
                self.note(f"({line})")
            if self.report is not None:
                for line in self.report(answer.usage, answer.last):
                    self.note(line)
            if self.interactive and said:
                self.note(self._meter(answer))
        if brake.pressed and self.launched:
            raise KeyboardInterrupt

    # ---- the context ----

    def _meter(self, answer: Answer) -> str:
        """How full the context is."""
        of, left = "", ""
        if answer.max_context is not None:
            of = f" of {answer.max_context}"
            left = f", {max(0, answer.max_context - answer.used)} left"
        cached = answer.usage.cached_tokens
        line = f"(context: {answer.used}{of} tokens used, {cached} cached{left})"
        return f"\x1b[2m{line}\x1b[0m" if self.colours else line

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
