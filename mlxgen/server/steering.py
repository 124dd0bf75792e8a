"""Runs the operator's programs and controllers, which write the text of a request.

Owns the way from such a request to its branches: ``lm.control``'s own loop, in the engine's thread
and on its scheduler, together with all other requests. Must never know HTTP. It delivers a branch's
chunks, including those up to its fork, and what is known of the branch at its end.

The operator's code runs between two steps and holds up all other requests, so slow calls are logged
and counted by name.

Invariant: an error in a program ends its own request, and no other.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..engine import (
    Control,
    Controller,
    Event,
    Handle,
    Path,
    Request,
    Scheduler,
    bound_controller,
)
from ..errors import CapacityError, MlxgenError, ModelError, QueueFullError
from .errors import RequestError
from .logs import log
from .registry import SlowCalls, Steered
from .reply import Delivery

_NOT_ITS_FAULT = (ModelError, CapacityError, QueueFullError, RequestError)


class Running:
    """One running program; it belongs to the engine's thread."""

    def __init__(
        self, steered: Steered, request: Request, slow: SlowCalls, *, opens_text: bool
    ) -> None:
        self.name, self._make = steered
        self._request = request
        self._opens_text = opens_text
        self._slow = slow
        self._control: Control[Any] | None = None
        self._places: dict[Path, int] = {}

    @property
    def is_over(self) -> bool:
        """Whether all of its branches have ended."""
        return self._control is not None and not self._control.branches

    def follows(self, handle: Handle) -> bool:
        """Whether a sequence is one of its branches."""
        return self._control is not None and self._control.follows(handle)

    def go(self, scheduler: Scheduler, events: Sequence[Event]) -> list[Delivery | BaseException]:
        """Take the events of its branches in a step, and decide how each branch goes on."""
        news: list[Delivery | BaseException] = []
        began = time.monotonic()
        try:
            if self._control is None:
                root = bound_controller(self._make(), self._request, opens_text=self._opens_text)
                self._control = Control(scheduler, self._request, root)
            for delivery in self._deliveries(self._control, events):
                news.append(delivery)
        except BaseException as error:  # the operator's code may raise anything
            self.leave()
            news.append(self._failure(error))
        self._slow.saw(self.name, time.monotonic() - began)
        return news

    def leave(self) -> None:
        """End all branches, and free what they hold."""
        if self._control is not None:
            for branch in self._control.branches:
                self._control.leave(branch)

    def _deliveries(self, control: Control[Any], events: Sequence[Event]) -> Iterator[Delivery]:
        for branch, chunk in control.push(events):
            yield from self._opened(control, branch)
            if chunk.finish_reason is None:
                yield Delivery(self._places[branch], [chunk])
                continue
            facts = _facts(control.controller_of(branch))
            usage = control.results[branch].usage
            if branch:  # the prompt was run once, for the root
                usage = replace(usage, cached_tokens=usage.prompt_tokens)
            yield Delivery(self._places[branch], [chunk], usage, facts=facts)
        if not control.branches:
            for branch, place in self._places.items():  # their final values
                yield Delivery(place, (), facts=_facts(control.controller_of(branch)))
            yield Delivery(0, (), closes=True)

    def _opened(self, control: Control[Any], told: Path) -> Iterator[Delivery]:
        """Deliver new branches; ``told``, if new, has already had one chunk since its fork."""
        for branch in control.made[len(self._places) :]:
            chunks = control.chunks(branch)
            place = self._places[branch] = len(self._places)
            yield Delivery(place, chunks[:-1] if branch == told else chunks, branch=branch)

    def _failure(self, error: BaseException) -> BaseException:
        """The error for the client, which includes the message of the operator's code."""
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
