"""The process in which grammars are tried out, and may die of it.

Owns the loop of such a process, its limits, and the vocabulary that it compiles for: the facts
of the real one without its tokenizer, so that nothing heavy is imported and a new process is
ready in a moment. Must never know requests; it imports neither MLX nor mlx-lm.

    parent -> child   Facts, once; then one specification after another, pickled
    child -> parent   a Verdict for each, the first one for the facts, as JSON

Each message comes behind its length in four bytes. Invariant: a specification that costs more
processor time or memory than is allowed ends the process, and the parent sees it end.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..errors import MlxgenError
from ..filters.compose import bind_opening
from ..pieces import Pieces
from ..tokens import Token, Vocabulary

OUT_OF_MEMORY = 77  # exit status
OUT_OF_TIME = -signal.SIGPROF
LENGTH = struct.Struct("!I")
_WATCH = 0.02  # seconds between two looks at the memory
_JOBS = 256  # after so many a process is worn out, as what it compiled stays with it


@dataclass(frozen=True, slots=True)
class Facts:
    """What compiling has to know of a vocabulary, and the limits of one compilation."""

    size: int
    vocab_size: int
    eos: frozenset[Token]
    special: frozenset[Token]
    added: frozenset[Token]
    strips_space: bool
    pieces: tuple[bytes, ...]
    cpu_seconds: float
    memory: int

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, vocab_size: int, *, cpu_seconds: float, memory: int
    ) -> Facts:
        return cls(
            vocabulary.size,
            vocab_size,
            vocabulary.eos,
            vocabulary.special,
            vocabulary.added,
            vocabulary.strips_space,
            tuple(vocabulary.pieces),
            cpu_seconds,
            memory,
        )


class Verdict(NamedTuple):
    """What came of a specification: ``error`` says why it cannot be used."""

    error: str | None
    worn: bool = False  # the process should be replaced


class SpelledVocabulary(Vocabulary):
    """A vocabulary from its facts alone; text is spelled by the longest tokens that fit."""

    def __init__(self, facts: Facts) -> None:
        self.size = facts.size
        self.eos = facts.eos
        self.special = facts.special
        self.added = facts.added
        self.pieces = facts.pieces
        self.strips_space = facts.strips_space
        self._pieces = Pieces(facts.pieces, _unchanged, facts.strips_space, frozenset())
        self._derived = {}
        self._lock = threading.RLock()

    def _tokenize(self, data: bytes) -> list[Token] | None:
        return None


def _unchanged(token: Token, piece: bytes) -> bytes:
    return piece


class Trial:
    """Compiles specifications for one vocabulary, each within the limits."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._vocabulary = SpelledVocabulary(facts)
        self._jobs = 0
        self._most = memory() + facts.memory // 4

    def judge(self, spec: Any) -> Verdict:
        """Compile one, with everything that preparing a row does with it."""
        self._jobs += 1
        try:
            filter = bind_opening(spec, self._vocabulary, self._facts.vocab_size)
            filter.can_end()
        except MlxgenError as error:
            return Verdict(str(error), self._worn())
        except BaseException as error:  # a panic of the grammar engine is no Exception
            return Verdict(f"it cannot be compiled ({type(error).__name__})", True)
        return Verdict(None, self._worn())

    def _worn(self) -> bool:
        return self._jobs >= _JOBS or memory() > self._most


def memory() -> int:
    """Bytes that this process has in memory; on macOS the most that it ever had."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    except OSError:  # Linux's own figure for the most is inherited from the parent
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def watch_memory(limit: int) -> None:
    """Have the process end when it grows by more than ``limit`` bytes from here."""
    most = memory() + limit

    def watch() -> None:
        while memory() <= most:
            time.sleep(_WATCH)
        os._exit(OUT_OF_MEMORY)

    threading.Thread(target=watch, daemon=True).start()


def read(stream: BinaryIO) -> Any:
    """The next message of the parent; EOFError at the end."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    return pickle.loads(stream.read(LENGTH.unpack(head)[0]))


def packed(message: Any) -> bytes:
    """A message of the parent as it is sent."""
    data = pickle.dumps(message)
    return LENGTH.pack(len(data)) + data


def write(stream: BinaryIO, verdict: Verdict) -> None:
    """Send a verdict."""
    data = json.dumps(verdict).encode()
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


def main(arguments: Sequence[str] = ()) -> int:
    """Serve one parent until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        facts: Facts = read(source)
        trial = Trial(facts)
        warm = trial.judge(_anything())
        watch_memory(facts.memory)
        write(sink, warm)
        while True:
            spec = read(source)
            signal.setitimer(signal.ITIMER_PROF, facts.cpu_seconds)
            verdict = trial.judge(spec)
            signal.setitimer(signal.ITIMER_PROF, 0)
            write(sink, verdict)
    except (EOFError, BrokenPipeError):
        return 0


def _anything() -> Any:
    """A specification that every vocabulary can meet, so that the first job finds all loaded."""
    from ..filters import JsonSchema

    return JsonSchema({"type": "object"})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
