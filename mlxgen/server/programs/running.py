"""The threads in which programs and controllers of the operator's run.

Owns the way from a request to its branches: ``lm.control``'s own loop, in a thread of each request,
on a scheduler that is lent to it. Must never know HTTP. What it delivers are a branch's chunks,
those up to its fork included, and what is known of it at its end.

Invariant: nothing that a program does, or never does, ends anything but its own request. A program
that does not give back control in time is left behind in its thread; while ``MOST_STUCK`` of them
are, no other one is started.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...engine import Control, Controller, Path, Request, bound_controller
from ...errors import CapacityError, MlxgenError, ModelError, QueueFullError
from ...workers import workers
from ..call import Steered
from ..engine.guest import Left
from ..engine.mailbox import Delivery, Mailbox
from ..engine.thread import EngineThread
from ..errors import RequestError
from ..logs import log
from ..threads import Stopped, stop

MOST_STUCK = 8
_NOT_ITS_FAULT = (ModelError, CapacityError, QueueFullError, RequestError)


class Programs:
    """All programs that run. It belongs to the event loop.

    ``timeout``: seconds that a program may think at a time; 0 is no limit. ``most``: branches of a
    request, and programs that run at a time.
    """

    def __init__(self, engine: EngineThread, *, timeout: float, most: int) -> None:
        self._engine = engine
        self._timeout = timeout
        self._most = most
        self._runs: list[Run] = []
        self._stuck: list[Run] = []

    def start(self, steered: Steered, request: Request, *, opens_text: bool, box: Mailbox) -> None:
        """Let a program write the text of a request; what comes of it goes to the mailbox."""
        self._runs = [run for run in self._runs if not run.work.is_over]
        self._stuck = [run for run in self._stuck if not run.work.is_over]
        if len(self._stuck) >= MOST_STUCK:
            raise RequestError(
                f"{MOST_STUCK} programs have not returned and never will; restart the server",
                status=503,
                code="programs_stuck",
            )
        if len(self._runs) >= self._most:  # some of them of clients that have left
            raise RequestError(
                f"{self._most} programs run already; try again when some are done",
                status=429,
                code="rate_limit_exceeded",
            )
        run = Run(self._engine, steered, request, opens_text, box, most=self._most)
        self._runs.append(run)
        if self._timeout:
            asyncio.get_running_loop().call_later(self._timeout, self._look, run)

    def _look(self, run: Run) -> None:
        """Fail a program that thinks for too long, and look again otherwise."""
        if run.work.is_over:
            return
        left = self._timeout - run.seconds
        if left > 0:
            asyncio.get_running_loop().call_later(max(left, 0.01), self._look, run)
            return
        log(logging.ERROR, "a program was given up", program=run.name, seconds=run.seconds)
        run.box.fail(
            RequestError(
                f"{run.name} has not said for {self._timeout:g} s how to go on",
                status=504,
                code="program_timeout",
            )
        )
        stop(run.work)
        self._stuck.append(run)


class Run:
    """A program in its thread."""

    def __init__(
        self,
        engine: EngineThread,
        steered: Steered,
        request: Request,
        opens_text: bool,
        box: Mailbox,
        *,
        most: int,
    ) -> None:
        self.name = steered.name
        self.box = box
        self._engine = engine
        self._make = steered.make
        self._request = request
        self._opens_text = opens_text
        self._lent = engine.lend(box, most=most)
        self._places: dict[Path, int] = {}
        self.work = workers().start(self._run, f"program {self.name}")

    @property
    def seconds(self) -> float:
        """For how long it thinks already."""
        since = self._lent.since
        return 0.0 if since is None else time.monotonic() - since

    def _run(self) -> None:
        try:
            self._drive()
        except (Left, Stopped):
            pass
        except BaseException as error:
            self._engine.tell(self.box, self._failure(error))
        finally:
            self._engine.dismiss(self._lent)

    def _drive(self) -> None:
        root = bound_controller(self._make(), self._request, opens_text=self._opens_text)
        with Control(self._lent, self._request, root) as control:
            for branch, chunk in control:
                self._open(control, branch)
                if chunk.finish_reason is None:
                    self._tell(Delivery(self._places[branch], [chunk]))
                    continue
                facts = _facts(control.controller_of(branch))
                usage = control.results[branch].usage
                if branch:  # its prompt was run once, for the root
                    usage = replace(usage, cached_tokens=usage.prompt_tokens)
                self._tell(Delivery(self._places[branch], [chunk], usage, facts=facts))
            for branch, place in self._places.items():  # as they are in the end
                known = _facts(control.controller_of(branch))
                self._tell(Delivery(place, (), facts=known))
        self._tell(Delivery(0, (), closes=True))

    def _open(self, control: Control[Any], told: Path) -> None:
        """Tell of new branches; that of ``told`` has had one chunk since it was made."""
        for branch in control.made[len(self._places) :]:
            chunks = control.chunks(branch)
            place = self._places[branch] = len(self._places)
            before = chunks[:-1] if branch == told else chunks
            self._tell(Delivery(place, before, branch=branch))

    def _tell(self, delivery: Delivery) -> None:
        self._engine.tell(self.box, delivery)

    def _failure(self, error: BaseException) -> BaseException:
        """What the client is told, which includes what the operator's code says of itself."""
        if isinstance(error, _NOT_ITS_FAULT):
            return error
        said = " ".join(str(error).split())
        if not isinstance(error, MlxgenError):
            said = f"{type(error).__name__}: {said}" if said else type(error).__name__
        log(logging.ERROR, "a program failed", program=self.name, error=said)
        failure = RequestError(f"{self.name} failed: {said}", status=500, code="program_failed")
        failure.__cause__ = error
        return failure


def _facts(controller: Controller) -> Mapping[str, Any]:
    """The value of a branch's program, and the variables that all branches share."""
    value = getattr(controller, "value", None)
    try:
        told = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the value {type(value).__name__} of a program is not JSON ({error}); return text, "
            "numbers, lists or dictionaries"
        ) from error
    variables = getattr(controller, "variables", None)
    shared = variables if isinstance(variables, Mapping) else {}
    return {"value": told, "variables": {str(name): str(text) for name, text in shared.items()}}
