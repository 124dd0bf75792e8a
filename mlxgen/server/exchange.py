"""One request from its headers to its last byte, however it ends.

Owns the order of events around an answer: admission, the body, the model, what interrupts the work,
the error that the client gets, and what is counted and logged. Must never know how events look. It
belongs to the event loop.

Work may be interrupted at any await: by the client hanging up, a limit of its time, the server
stopping or the engine failing. Then it is cancelled, and the client gets the error, as an answer
or, if a stream has begun, as its last event. A client that does not read even that within
``LAST_WORDS`` seconds is disconnected.

Invariants: when ``run`` returns, the sequences of the request are finished or cancelled, its place
is free, and the answer is complete or its connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from fastapi import Response
from starlette.types import Receive, Scope, Send

from .answers import Answer, Said, gone
from .bodies import header_of, parse_body
from .engine.mailbox import Mailbox
from .engine.running import Running
from .errors import RequestError, error_body
from .fleet.catalogue import Entry
from .fleet.member import Serving
from .gate import owner_of
from .jobs import Body, Prepared
from .logs import log, log_failure
from .reply import Reply, Sent
from .service import Service, queue_timeout
from .wire import (
    DONE,
    STREAM,
    ClientGone,
    Header,
    JsonResponse,
    check_headers,
    encode_events,
    error_response,
    read_body,
)

LAST_WORDS = 1.0
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")

Work: TypeAlias = Callable[["Exchange"], Awaitable[None]]


class Exchange:
    """One request; ``endpoint`` is its name in figures and the log. ``aside``: it takes no place,
    as it is about another one."""

    def __init__(
        self,
        service: Service,
        endpoint: str,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        aside: bool = False,
    ) -> None:
        self.service = service
        self.id = secrets.token_hex(12)
        headers = dict(scope["headers"])
        given = headers.get(b"x-request-id", b"")
        self._given_id = given if _REQUEST_ID.fullmatch(given) else self.id.encode()
        self.last_event: str = headers.get(b"last-event-id", b"").decode("latin-1")
        """The id of the last event that the client has of a stream which it goes on with."""
        self.owner = owner_of(scope)
        """Whose request it is."""
        self.fields: dict[str, Any] = {}
        """Further fields for the log; never anything that a person wrote."""
        self.describe_failure: Callable[[BaseException], Sequence[Sent]] = lambda error: [
            error_body(error)[1]
        ]
        """Makes the events that end a stream which fails."""
        self.end = DONE
        """What follows the last event of a stream."""
        self.ignored: Sequence[str] = ()
        """Accepted fields without effect, which a header names."""
        self._aside = aside
        self._endpoint = endpoint
        self._scope = scope
        self._receive = receive
        self._send = send
        self._streams = False
        self._answered = False
        self._status = 200
        self._used: tuple[Serving, Entry] | None = None
        self._said: Said | None = None
        self._answer: Answer | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interruption: BaseException | None = None
        self._stage = 0  # 0 until a prompt is run, 1 while one is, 2 from then on
        self._timer: asyncio.TimerHandle | None = None  # of this stage
        self._began = time.perf_counter()

    # ---- for the work ------------------------------------------------------------------------

    @property
    def seconds(self) -> float:
        """Seconds since the request's headers."""
        return time.perf_counter() - self._began

    @property
    def id_in_path(self) -> str:
        """The id that the path names."""
        id: str = self._scope["path_params"]["id"]
        return id

    async def read(self) -> Body:
        """The object in the body; after this, a client that hangs up interrupts the work."""
        limit = self.service.body_limit
        check_headers(self._scope["headers"], limit)
        data = await read_body(self._receive, limit)
        if not self._aside:
            self.service.admit(self)
        self._watcher = asyncio.create_task(self._watch_client())
        return await self.service.workers.run(parse_body, data)

    async def use(self, name: object) -> Serving:
        """The model of this name, loaded, until the exchange ends."""
        fleet = self.service.fleet
        entry = fleet.catalogue.meant(name)
        self.fields["model"] = entry.name
        serving = await fleet.use(entry)
        self._used = serving, entry
        return serving

    def submit(self, id: str, prepared: Prepared, reply: Reply) -> Mailbox:
        """Let the engine generate sequences, or a program of the operator's write the text, until
        they end or the exchange does; ``id`` or that of the request steers them."""
        assert self._used is not None
        (ask, sequences), serving = prepared, self._used[0]
        box = Mailbox(
            len(sequences),
            on_overflow=self.interrupt,
            watched=ask.watched,
            grows=ask.steered is not None,
        )
        numbered = ask.stream and ask.steered is None
        self._said = Said(self.owner, id, self.end, numbered=numbered)
        self.service.answers.hold(self._said, self)
        self._know(Answer(ask, reply, box, serving, self._said))
        if ask.steered is None:
            serving.engine.submit(sequences, box, self.owner)
            return box
        self.fields["program"] = ask.steered.name
        slow, opens_text = serving.model.registry.slow, ask.questions[0].prompt.opens_text
        serving.engine.steer(Running(ask.steered, sequences[0], box, slow, opens_text=opens_text))
        self.heard(all_run=False)  # what it runs first, and when, is its own affair
        return box

    def _know(self, answer: Answer) -> None:
        """Let an answer be steered until the exchange ends."""
        self._answer = answer
        self.service.answers.know(answer, self._given_id.decode())

    async def go_on(self) -> Answer | None:
        """Send what a stream told after the last event that the client has, to go on with what is
        left of it."""
        said, missed = await self.service.answers.taken(self.owner, self.last_event, self)
        self._said, self.end = said, said.end
        self.fields["resumed"] = said.id
        answer = said.rests
        if answer is not None:
            serving = await self.use(answer.ask.model.name)
            if serving is not answer.serving:
                raise gone("its model was unloaded meanwhile")
            answer.mailbox.on_overflow = self.interrupt
            serving.engine.resume(answer.mailbox)
            said.rests = None
            self._know(answer)
        await self.write([], missed)
        return answer

    def heard(self, *, all_run: bool) -> None:
        """Note that a prompt is being run, or that all of it was; a stage never comes again."""
        stage = 2 if all_run else 1
        if stage > self._stage:
            self._stage = stage
            seconds = self.service.settings.request_timeout if all_run else 0.0
            self._limit(seconds, partial(_timeout, seconds))

    async def answer(self, body: bytes) -> None:
        """Send the whole answer, as JSON."""
        self._answered = True
        await self._respond(JsonResponse(body))

    async def write(self, events: Sequence[Sent], missed: bytes = b"") -> None:
        """Send events of a stream in one piece, after those that were missed; waits while the
        client does not read."""
        new = missed + self._encoded(events)
        if not self._streams:  # from now on a failure can only be an event
            self._streams = True
            headers = [*STREAM, *self._headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if new:
            await self._write(new, more=True)

    async def finish(self, events: Sequence[Sent]) -> None:
        """Send the last events of a stream."""
        last = self._encoded(events)
        await self.write([])
        self._answered = True
        await self._write(last + self.end, more=False)

    def _encoded(self, events: Sequence[Sent]) -> bytes:
        """Events of the stream, which are kept if it can be gone on with."""
        return encode_events(events) if self._said is None else self._said.encoded(events)

    async def _write(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _respond(self, response: Response) -> None:
        response.raw_headers.extend(self._headers())
        await response(self._scope, self._receive, self._send)

    # ---- its life ----------------------------------------------------------------------------

    def interrupt(self, error: BaseException) -> None:
        """End the work with an error if it has not ended."""
        if self._task is not None and self._interruption is None:
            self._interruption = error
            self._task.cancel()

    def _limit(self, seconds: float, error: Callable[[], RequestError]) -> None:
        """Interrupt the work with an error after so many seconds from now, and no longer after
        those that were said before; 0 is never."""
        if self._timer is not None:
            self._timer.cancel()
        later = asyncio.get_running_loop().call_later
        self._timer = later(seconds, lambda: self.interrupt(error())) if seconds else None

    async def run(self, work: Work) -> None:
        """Do the work and answer, with an error if necessary."""
        service = self.service
        self._task = asyncio.current_task()
        outcome = "completed"
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            try:
                stack.enter_context(service.visited(self, aside=self._aside))
                own = service.settings
                self._limit(own.queue_timeout, partial(queue_timeout, own))
                await work(self)
            except asyncio.CancelledError:
                if self._interruption is None:
                    raise
                assert self._task is not None
                self._task.uncancel()
                outcome = await self._fail(self._interruption)
            except Exception as error:
                outcome = await self._fail(error)
        self._account(outcome)

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.interrupt(ClientGone())

    def _release(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        if self._timer is not None:
            self._timer.cancel()
        used, self._used = self._used, None
        said, answer = self._said, self._answer
        if said is not None and said.holder is self:
            rests = said.rests  # if it was not gone on with
            if answer is not None and not answer.mailbox.finished:
                engine = answer.serving.engine
                if said.told and isinstance(self._interruption, ClientGone):
                    rests = answer
                    engine.rest(answer.mailbox)
                else:
                    engine.cancel(answer.mailbox)
            self.service.answers.leave(said, rests)
        if used is not None:
            self.service.fleet.release(used[1])

    async def _fail(self, error: BaseException) -> str:
        """Tell the client, and return the outcome of the request."""
        self._release()
        if isinstance(error, ClientGone):
            return "client_gone"
        self._status, _ = error_body(error)
        if self._status == 500:
            log_failure("a request failed", error, id=self.id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                if self._streams and not self._answered:
                    events = self._encoded(self.describe_failure(error))
                    await self._write(events + self.end, more=False)
                elif not self._answered:
                    await self._respond(error_response(error, path=self._scope["path"]))
        code = getattr(error, "code", None)
        if code in ("queue_timeout", "timeout"):
            return "timeout"
        if code == "slow_reader":
            return str(code)
        known = {429: "busy", 503: "unavailable"}
        return known.get(self._status, "invalid" if self._status < 500 else "failed")

    def _headers(self) -> list[Header]:
        headers = [(b"x-request-id", self._given_id)]
        if self.ignored:
            headers.append((b"x-mlxgen-ignored", header_of(self.ignored).encode()))
        if self._status in (429, 503):
            wait = self.service.retry_after()
            headers.append((b"retry-after", str(wait).encode()))
        if self.service.is_stopping:
            headers.append((b"connection", b"close"))
        return headers

    def _account(self, outcome: str) -> None:
        seconds, metrics = self.seconds, self.service.metrics
        metrics.requests.labels(self._endpoint, outcome).inc()
        if "model" in self.fields:
            metrics.model_requests.labels(self.fields["model"]).inc()
        if outcome == "completed":
            metrics.request_seconds.labels(self._endpoint).observe(seconds)
            self.service.took(seconds)
        said = f"{self._scope['method']} {self._endpoint} {self._status}"
        log(logging.INFO, said, outcome=outcome, seconds=seconds, id=self.id, **self.fields)


def _timeout(seconds: float) -> RequestError:
    return RequestError(
        f"the answer took more than {seconds:g} seconds; ask for fewer tokens",
        status=504,
        code="timeout",
    )
