"""One request from its headers to its last byte, however it ends.

Owns the order of events around an answer: admission, the body, what interrupts the work, the
error that the client gets, and what is counted and logged. Must never know what is answered:
that is the ``work`` passed to ``run``. It belongs to the event loop.

Work may be interrupted at any await: by the client hanging up, a limit of its time, the server
stopping or the engine failing. Then it is cancelled, and the client gets the error, as an answer
or, if a stream has begun, as its last event. A client that does not read even that within
``LAST_WORDS`` seconds is disconnected.

Invariant: when ``run`` returns, the sequences of the request are finished or cancelled, its place
is free, and the answer is complete or its connection is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias

from fastapi import Response
from starlette.types import Receive, Scope, Send

from ..engine import Request
from .answers import Answer
from .ask import Ask
from .bodies import header_of
from .engine.mailbox import Mailbox
from .engine.running import Running
from .errors import RequestError, error_body
from .fleet.catalogue import Entry
from .fleet.member import Serving
from .gate import owner_of
from .jobs import Prepared
from .logs import log, log_failure
from .reply import Sent
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
_TIMEOUTS = ("queue_timeout", "timeout")
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
        self._named: Answer | None = None
        self._aside = aside
        self._endpoint = endpoint
        self._scope = scope
        self._receive = receive
        self._send = send
        self._streams = False
        self._answered = False
        self._status = 200
        self._serving: Serving | None = None
        self._entry: Entry | None = None
        self._mailbox: Mailbox | None = None
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

    async def body(self) -> bytes:
        """The request's body; after this, a client that hangs up interrupts the work."""
        limit = self.service.body_limit
        check_headers(self._scope["headers"], limit)
        data = await read_body(self._receive, limit)
        if not self._aside:
            self.service.admit(self)
        self._watcher = asyncio.create_task(self._watch_client())
        return data

    async def use(self, name: object) -> Serving:
        """The model of this name, loaded, until the exchange ends."""
        fleet = self.service.fleet
        entry = fleet.catalogue.meant(name)
        self.fields["model"] = entry.name
        serving = await fleet.use(entry)
        self._serving, self._entry = serving, entry
        return serving

    def submit(self, sequences: Sequence[Request], *, watched: bool = False) -> Mailbox:
        """Let the engine generate sequences until they end or the exchange does."""
        assert self._serving is not None
        self._mailbox = Mailbox(len(sequences), on_overflow=self._hang_up, watched=watched)
        self._serving.engine.submit(sequences, self._mailbox, self.owner)
        return self._mailbox

    def control(self, prepared: Prepared) -> Mailbox:
        """Let what a call is steered by write its text, likewise."""
        steered, (job,), (request,) = prepared.ask.steered, prepared.ask.jobs, prepared.sequences
        assert steered is not None and self._serving is not None
        self.fields["program"] = steered.name
        box = self._mailbox = Mailbox(1, on_overflow=self._hang_up, grows=True)
        slow, opens_text = self._serving.model.registry.slow, job.prompt.opens_text
        program = Running(steered, request, box, slow, opens_text=opens_text)
        self._serving.engine.steer(program)
        self.heard(all_run=False)  # what it runs first, and when, is its own affair
        return box

    def name(self, id: str, ask: Ask, mailbox: Mailbox) -> None:
        """Let the answer be steered by this id or that of the request, until the exchange ends."""
        assert self._serving is not None
        own = _given_id(self._scope["headers"]) or self.id.encode()
        self._named = Answer(id, ask, mailbox, self._serving)
        self.service.answers.add(self.owner, (id, own.decode()), self._named)

    @property
    def owner(self) -> str:
        """Whose request it is."""
        return owner_of(self._scope)

    @property
    def id_in_path(self) -> str:
        """The id that the path names."""
        id: str = self._scope["path_params"]["id"]
        return id

    def heard(self, *, all_run: bool) -> None:
        """Note that a prompt is being run, or that all of it was; a stage never comes again."""
        stage = 2 if all_run else 1
        if stage > self._stage:
            self._stage = stage
            seconds = self.service.settings.request_timeout if all_run else 0.0
            self._limit(seconds, _timeout(seconds))

    async def answer(self, body: bytes) -> None:
        """Send the whole answer, as JSON."""
        self._answered = True
        await self._respond(JsonResponse(body))

    async def write(self, events: Sequence[Sent]) -> None:
        """Send events of a stream in one piece; waits while the client does not read."""
        if not self._streams:  # from now on a failure can only be an event
            self._streams = True
            headers = [*STREAM, *self._headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if events:
            await self._write(encode_events(events), more=True)

    async def finish(self, events: Sequence[Sent]) -> None:
        """Send the last events of a stream."""
        await self.write([])
        self._answered = True
        await self._write(encode_events(events) + self.end, more=False)

    async def _write(self, body: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _respond(self, response: Response) -> None:
        response.raw_headers.extend(self._headers())
        await response(self._scope, self._receive, self._send)

    # ---- from outside ------------------------------------------------------------------------

    def interrupt(self, error: BaseException) -> None:
        """End the work with an error if it has not ended."""
        if self._task is not None and self._interruption is None:
            self._interruption = error
            self._task.cancel()

    def _hang_up(self) -> None:
        self.interrupt(
            RequestError("the client does not read its answer", status=408, code="slow_reader")
        )

    def _limit(self, seconds: float, error: BaseException) -> None:
        """Interrupt the work with an error after so many seconds from now, and no longer after
        those that were said before; 0 is never."""
        if self._timer is not None:
            self._timer.cancel()
        later = asyncio.get_running_loop().call_later
        self._timer = later(seconds, self.interrupt, error) if seconds else None

    # ---- its life ----------------------------------------------------------------------------

    async def run(self, work: Work) -> None:
        """Do the work and answer, with an error if necessary."""
        service = self.service
        self._task = asyncio.current_task()
        outcome = "completed"
        with contextlib.ExitStack() as stack:
            stack.callback(self._release)
            try:
                stack.enter_context(service.visited(self, aside=self._aside))
                self._limit(service.settings.queue_timeout, queue_timeout(service.settings))
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
        if self._named is not None:
            self.service.answers.end(self._named)
        serving, self._serving = self._serving, None
        if serving is None or self._entry is None:
            return
        if self._mailbox is not None and not self._mailbox.finished:
            serving.engine.cancel(self._mailbox)
        self.service.fleet.release(self._entry)

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
                await self._say(error)
        return _outcome(error, self._status)

    async def _say(self, error: BaseException) -> None:
        if self._answered:
            return
        if self._streams:
            await self._write(encode_events(self.describe_failure(error)) + self.end, more=False)
        else:
            await self._respond(error_response(error, path=self._scope["path"]))

    def _headers(self) -> list[Header]:
        headers = [(b"x-request-id", _given_id(self._scope["headers"]) or self.id.encode())]
        if self.ignored:
            headers.append((b"x-mlxgen-ignored", header_of(self.ignored).encode()))
        if self._status in (429, 503):
            wait = self.service.retry_after()
            headers.append((b"retry-after", str(wait).encode()))
        if self.service.is_stopping:
            headers.append((b"connection", b"close"))
        return headers

    def _account(self, outcome: str) -> None:
        seconds = self.seconds
        metrics = self.service.metrics
        metrics.requests.labels(self._endpoint, outcome).inc()
        if "model" in self.fields:
            metrics.model_requests.labels(self.fields["model"]).inc()
        if outcome == "completed":
            metrics.request_seconds.labels(self._endpoint).observe(seconds)
            self.service.took(seconds)
        log(
            logging.INFO,
            f"{self._scope['method']} {self._endpoint} {self._status}",
            outcome=outcome,
            seconds=seconds,
            id=self.id,
            **self.fields,
        )


def _timeout(seconds: float) -> RequestError:
    return RequestError(
        f"the answer took more than {seconds:g} seconds; ask for fewer tokens",
        status=504,
        code="timeout",
    )


def _given_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The client's own id of its request, if it may go into a header."""
    given = dict(headers).get(b"x-request-id", b"")
    return given if _REQUEST_ID.fullmatch(given) else None


def _outcome(error: BaseException, status: int) -> str:
    code = getattr(error, "code", None)
    if code in _TIMEOUTS:
        return "timeout"
    if code == "slow_reader":
        return str(code)
    if status == 429:
        return "busy"
    if status == 503:
        return "unavailable"
    return "invalid" if status < 500 else "failed"
