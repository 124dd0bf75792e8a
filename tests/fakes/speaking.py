"""Language models that say what a test writes down, token by token.

Built on ``ScriptedModel`` and the alphabet tokenizer: a token is a single byte or one of
the pieces that the test names. A ``Hall`` has many of them speak at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mlx_lm.models.cache import ArraysCache

from mlxgen import LanguageModel
from mlxgen.engine.limits import Limits, Stats
from mlxgen.engine.options import Options
from mlxgen.engine.request.accept import rewind
from mlxgen.engine.scheduling.scheduler import Scheduler
from mlxgen.engine.step.drawn import Event
from mlxgen.engine.step.handle import Handle
from mlxgen.loading.generation_config import GREEDY
from mlxgen.tokens import Token, Vocabulary

from .paces import Still
from .scripted import ScriptedModel
from .tokenizers import alphabet_tokenizer

PROMPT = [ord("?")]
END = "<end>"
Piece = str | bytes | int


class Speaker:
    """``lm``, its scripted ``model``, and ``token(piece)`` to name tokens by their text. If it is
    ``recurrent``, it goes on only from states."""

    def __init__(
        self,
        pieces: Sequence[str],
        say: Callable[[Any, list[Token]], Sequence[Token] | dict[Token, float]],
        **options: Any,
    ) -> None:
        extra = sorted({p for p in pieces if p != END and len(p.encode()) > 1})
        self._extra = {piece: 256 + i for i, piece in enumerate(extra)}
        self.tokenizer = alphabet_tokenizer(extra)
        if template := options.pop("template", None):
            self.tokenizer._tokenizer.chat_template = template
        self.vocabulary = Vocabulary.of(self.tokenizer)
        (self.end,) = self.vocabulary.eos
        states = (lambda: [ArraysCache(1)]) if options.pop("recurrent", False) else None
        make_cache = options.pop("make_cache", states)
        options.setdefault("draft", "off")  # so that tests can count passes
        width = options.pop("vocab_size", self.vocabulary.size)
        self.prompt_length = options.pop("prompt_length", len(PROMPT))
        self.model = ScriptedModel(
            width, lambda history: say(self, list(history[self.prompt_length :])), make_cache
        )
        options.setdefault("recommended", GREEDY)
        self.lm = LanguageModel(self.model, self.tokenizer, **options)
        self.lm.runtime.pace = Still()  # so that no decision depends on the clock
        _ = self.lm.vocab_size  # asked once, so that tests can count passes
        self.model.forget()

    def token(self, piece: Piece) -> Token:
        if isinstance(piece, int):
            return piece
        if piece == END:
            return self.end
        data = piece.encode() if isinstance(piece, str) else piece
        return data[0] if len(data) == 1 else self._extra[data.decode()]

    def tokens(self, pieces: Sequence[Piece]) -> list[Token]:
        return [self.token(piece) for piece in pieces]

    def text(self, tokens: Sequence[Token]) -> str:
        return self.vocabulary.decode(tokens)


def reciter(pieces: Sequence[Piece], *, extra: Sequence[str] = (), **options: Any) -> Speaker:
    """Says ``pieces`` one after the other, then the end token; by position, come what may."""
    strings = [p for p in pieces if isinstance(p, str)]

    def say(self: Speaker, generated: list[Token]) -> Sequence[Token]:
        position = len(generated)
        return [self.token(pieces[position])] if position < len(pieces) else [self.end]

    return Speaker([*strings, *extra], say, **options)


def talker(choices: Mapping[str, Sequence[str]], **options: Any) -> Speaker:
    """Says what ``choices`` has for the text so far, best first; the end token elsewhere."""
    pieces = [piece for ranked in choices.values() for piece in ranked]

    def say(self: Speaker, generated: list[Token]) -> Sequence[Token]:
        ranked = choices.get(self.text(generated), [])
        return [*(self.token(piece) for piece in ranked), self.end]

    return Speaker(pieces, say, **options)


def letters(count: int, start: int = 0) -> str:
    """The alphabet over and over, from a place in it on."""
    return "".join(chr(97 + (start + i) % 26) for i in range(count))


def endless(**options: Any) -> Speaker:
    """Says ``letters`` and comes to no end by itself."""

    def say(self: Speaker, generated: list[Token]) -> Sequence[Token]:
        return [97 + len(generated) % 26]

    return Speaker([], say, **options)


class Hall:
    """A scheduler with what its rows have said, which looks at its invariants at every step."""

    def __init__(self, speaker: Speaker, **limits: Any) -> None:
        self.speaker = speaker
        self.scheduler = Scheduler(speaker.lm.runtime, Limits(**limits))
        speaker.model.forget()
        self.texts: dict[Handle, str] = {}
        self.errors: dict[Handle, Exception] = {}
        self.most_running = 0

    def submit(self, prompt: list[Token] | None = None, **options: Any) -> Handle:
        options = {"draft": "off", **options}  # the tests count its passes
        row = self.speaker.lm.runtime.prepare(prompt or PROMPT, Options.of(options))
        handle = self.scheduler.submit(row)
        self.texts[handle] = ""
        return handle

    def fork(self, handle: Handle, n: int = 1) -> list[Handle]:
        twins = self.scheduler.fork(handle, n)
        self.texts.update(dict.fromkeys(twins, self.texts[handle]))
        self.scheduler.check_integrity()
        return twins

    def rewind(self, handle: Handle, to: int) -> None:
        request = handle.request
        rewind(request, request.target_of(None, to, request.position))
        self.texts[handle] = handle.request.outbox.text
        self.scheduler.check_integrity()

    def step(self) -> list[Event]:
        events = self.scheduler.step()
        for handle, chunks, error in events:
            assert handle not in self.errors
            self.texts[handle] += "".join(chunk.text for chunk in chunks)
            if error is not None:
                self.errors[handle] = error
        self.scheduler.check_integrity()
        self.most_running = max(self.most_running, self.stats.running + self.stats.prefilling)
        return events

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def finish(self) -> list[str]:
        """Run to the end; the text of every row, in the order of their coming."""
        for _ in range(5000):
            if not self.scheduler.busy:
                return list(self.texts.values())
            self.step()
        raise AssertionError("it never ended")

    @property
    def stats(self) -> Stats:
        return self.scheduler.stats()

    @property
    def waiting(self) -> bool:
        """Whether there are rows that do not run yet."""
        return self.stats.prefilling + self.stats.queued > 0

    @property
    def tokens_run(self) -> int:
        """Tokens that went through the model since it was told to forget."""
        return sum(len(row) for rows in self.speaker.model.rows for row in rows)
