"""The process in which grammars are tried out, and which may die of them.

Owns the loop of such a process and its limits. It compiles for the real vocabulary without its
tokenizer, so that nothing heavy is imported and a new process is ready in a moment. Must never know
requests; it imports neither MLX nor mlx-lm.

    parent -> child   Facts, once; then one specification after another, pickled
    child -> parent   for each, including the facts: a line of JSON when it has arrived, null, and
                      then one with a Verdict

Invariant: a specification that costs more processor time or memory than allowed ends the process,
and the parent sees it end. Both are counted from the beginning of the specification, and neither is
wall-clock time: waiting or sleep makes nothing too costly.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import resource
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ...errors import DeadEndError, GrammarError, MlxgenError
from ...filters import JsonSchema
from ...filters.constraint import Constraint
from ...tokens import Vocabulary
from ...tokens.spelled import SpelledVocabulary, facts_of

OUT_OF_MEMORY = 77  # exit status
OUT_OF_TIME = -signal.SIGPROF
_WATCH = 0.02  # seconds between two checks of the memory
_FORCED = 256  # forced tokens at the beginning of a text that are tried
_REASON = 500  # characters of an error
_JOBS = 256  # after these a process is worn out, because it keeps what it compiled


@dataclass(frozen=True, slots=True)
class Facts:
    """What compiling needs to know of a model, and the limits of one compilation."""

    vocabulary: SpelledVocabulary
    vocab_size: int
    cpu_seconds: float
    memory: int

    @classmethod
    def of(
        cls, vocabulary: Vocabulary, vocab_size: int, *, cpu_seconds: float, memory: int
    ) -> Facts:
        spelled = SpelledVocabulary(vocabulary.pieces, *facts_of(vocabulary))
        return cls(spelled, vocab_size, cpu_seconds, memory)


class Verdict(NamedTuple):
    """The result of a trial; ``error`` says why the specification cannot be used."""

    error: str | None
    worn: bool = False  # the process should be replaced
    seconds: float = 0.0  # of the processor


class Trial:
    """Compiles specifications for one vocabulary."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._jobs = 0
        self._most = math.inf
        everywhere = JsonSchema({"type": "object"})  # after it the first job finds all loaded
        self.ready = self.judge(everywhere)
        self._most = memory() + facts.memory // 4

    def judge(self, spec: Any) -> Verdict:
        """Compile one, and do everything that preparing and starting a sequence does with it."""
        self._jobs += 1
        began = time.process_time()
        error: str | None = None
        panicked = False
        try:
            self._run(spec)
        except MlxgenError as refusal:
            error = _short(str(refusal))
        except BaseException as panic:  # a panic of the grammar engine is not an Exception
            error, panicked = f"it cannot be compiled ({type(panic).__name__})", True
        worn = panicked or self._jobs >= _JOBS or memory() > self._most
        return Verdict(error, worn, time.process_time() - began)

    def _run(self, spec: Any) -> None:
        """Follow the forced tokens at the beginning to an end or to a choice."""
        constraint = Constraint([spec], self._facts.vocabulary, self._facts.vocab_size)
        try:
            while len(constraint) < _FORCED and not constraint.ended():
                run = constraint.forced()[:_FORCED]
                if not run and (only := constraint.only()) is not None:
                    run = [only]
                if not run:
                    return
                for token in run:
                    constraint.advance(token)
        except DeadEndError as error:
            raise GrammarError(f"no text satisfies it: {error}") from error


def memory() -> int:
    """Bytes that this process has in memory; on macOS the maximum so far."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    except OSError:  # on Linux, the maximum is inherited from the parent
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class MemoryWatch:
    """Ends the process if it grows by more than ``limit`` bytes during one specification."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.begin()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self) -> None:
        """Start counting here."""
        self._most = memory() + self._limit

    def _watch(self) -> None:
        while memory() <= self._most:
            time.sleep(_WATCH)
        os._exit(OUT_OF_MEMORY)


def write(stream: BinaryIO, verdict: Verdict | None) -> None:
    """Send a verdict, or ``None`` to say that a message has arrived."""
    stream.write(json.dumps(verdict).encode() + b"\n")
    stream.flush()


def main() -> int:
    """Serve one parent until it hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        facts: Facts = pickle.load(source)
        write(sink, None)
        trial = Trial(facts)
        watch = MemoryWatch(facts.memory)
        write(sink, trial.ready)
        while True:
            spec = pickle.load(source)
            write(sink, None)
            watch.begin()
            signal.setitimer(signal.ITIMER_PROF, facts.cpu_seconds)
            verdict = trial.judge(spec)
            signal.setitimer(signal.ITIMER_PROF, 0)
            write(sink, verdict)
    except (EOFError, BrokenPipeError):
        return 0


def _short(text: str) -> str:
    return text if len(text) <= _REASON else f"{text[: _REASON - 3]}..."


if __name__ == "__main__":
    sys.exit(main())
