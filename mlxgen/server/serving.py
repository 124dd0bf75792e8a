"""A loaded model, and the threads in which its requests become sequences that are ready to run.

Owns the threads in which requests are parsed, chats rendered, prompts tokenized and grammars
compiled. Must never know HTTP.

Grammars compile here, within llguidance's own limits: others are refused. llguidance releases the
interpreter's lock while it compiles, and needs a large stack for deep grammars.

Invariant: a sequence that comes out is fully checked; otherwise an error says what is wrong.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from ..engine import Request
from ..errors import DeadEndError, FilterError, GrammarError
from ..filters import Constraint, Specification
from ..language_model import LanguageModel
from .ask import Ask, Asks
from .bodies import Read
from .engine import EngineThread
from .errors import RequestError
from .served_model import ServedModel

THREADS = 8
STACK = 512 << 20  # bytes of address space for a thread's stack: 20,000 rules may be nested
_PATIENCE = 2.0  # seconds
FORCED = 256  # forced tokens to try at the beginning of a text
IMAGES = 2 << 30  # bytes of pixels in all requests

T = TypeVar("T")
Prepared: TypeAlias = tuple[Ask, Sequence[Request]]
"""A parsed request, and its sequences in the order of its jobs."""


class Workers:
    """The threads that prepare requests, for all models."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, "prepare")
        all_there = threading.Barrier(THREADS)  # so that all exist now, with large stacks
        before = threading.stack_size(STACK)
        try:
            for _ in range(THREADS):
                self._pool.submit(all_there.wait)
        finally:
            threading.stack_size(before)

    async def run(self, work: Callable[..., T], *given: Any) -> T:
        """Run work in a thread."""
        own = partial(_run, work, *given)
        return await asyncio.get_running_loop().run_in_executor(self._pool, own)

    def close(self) -> bool:
        """Start no more work, and wait a little for the rest; return True if all of it ended."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        ending = threading.Thread(target=self._pool.shutdown, daemon=True)
        ending.start()
        ending.join(_PATIENCE)
        return not ending.is_alive()


def _run(work: Callable[..., T], *given: Any) -> T:
    try:
        return work(*given)
    except RecursionError as error:
        reason = "the request is nested too deeply; make it flatter"
        raise RequestError(reason, code="invalid_value") from error
    except Exception:
        raise
    except BaseException as error:  # a panic of a library in Rust is not an Exception
        raise RuntimeError(f"a library panicked: {type(error).__name__}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Serving:
    """A loaded model, and everything that requests need to use it. ``fetches``: images that they
    name are fetched first; ``max_sequences``: the most sequences of one request. Its methods are
    for the threads."""

    engine: EngineThread
    lm: LanguageModel
    model: ServedModel
    max_sequences: int
    fetches: bool

    def prepared(self, known: Read[Any], asks: Asks) -> Prepared:
        """Make the sequences of a request; raises if anything is wrong with it."""
        ask = asks(known, self.model)
        count = len(ask.questions) * ask.answers
        if count > self.max_sequences:
            raise RequestError.at(
                "n",
                f"expected at most {self.max_sequences} answers, as no more may wait here, got "
                f"{count}; ask for fewer at a time",
            )
        images = self.model.dialect.images
        if images is not None and images.nbytes > IMAGES and ask.shows_images:
            reason = "too many images wait here; send this one again later"
            raise RequestError(reason, status=503, code="images_busy")
        try:
            if ask.spec is not None:
                ask = self._compiled(ask, ask.spec)
            return ask, [self.lm.runtime.prepare(*job) for job in ask.jobs]
        except FilterError as error:
            if ask.spec is None:
                raise
            field = ask.names["filters"]
            raise RequestError(
                f"{field}: {error}", status=error.status, param=field, code="invalid_grammar"
            ) from error

    def _compiled(self, ask: Ask, spec: Specification) -> Ask:
        """The ``Ask``, with a specification that compiles. If the one for calls does not, it holds
        to their schemas only the tools whose schemas compile alone."""
        try:
            self.try_out(spec)
            return ask
        except GrammarError:
            if (held := ask.held) is None:
                raise
        failed = set[str]()
        names = [name for name in held.use.names if name not in held.loose]
        for name in names:
            try:
                self.try_out(held.alone(name))
            except GrammarError:
                failed.add(name)
        ask = ask.loosened(held.loose | (failed or set(names)))
        self.try_out(ask.spec)
        return ask

    def try_out(self, spec: Specification | None) -> None:
        """Compile a specification, and follow its forced tokens until there is a choice or an end.

        Raises ``GrammarError`` if either is impossible.
        """
        if spec is None:
            return
        try:
            constraint = Constraint([spec], self.lm.vocabulary, self.lm.vocab_size)
            while len(constraint) < FORCED and not constraint.ended():
                run = constraint.forced()[:FORCED]
                if not run and (only := constraint.only()) is not None:
                    run = [only]
                if not run:
                    return
                for token in run:
                    constraint.advance(token)
        except DeadEndError as error:
            raise GrammarError(f"no text satisfies it: {error}") from error
        except Exception:
            raise
        except BaseException as panic:  # of the grammar engine
            raise GrammarError(f"it cannot be compiled ({type(panic).__name__})") from panic
