"""One request from its headers to its last byte, however it ends.

Owns the order of events around an answer: admission, the body, the model, the delivery of the
answer, its interruption, the error that the client gets, and what is counted and logged. Must never
know the form of events. It belongs to the event loop.

Work may be interrupted at any await: by the client hanging up, a time limit, the server stopping or
the engine failing. Then the work is cancelled, and the client gets the error, as an answer or as
the last event of a stream, which must be sent within ``LAST_WORDS`` seconds.

Invariants: when an exchange is over, the sequences of the request have ended or rest until its
client comes back, its place is free, and the answer is complete or its connection is closed. The
same chunks are pushed into a reply, in the same order, whether the client streams or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from ..errors import MlxgenError
from .answers import Answer, Told, gone
from .ask import Api
from .bodies import B, Read, header_of, read
from .catalogue import Entry
from .engine import Mailbox
from .errors import RequestError, as_request_error, error_body
from .gate import OWNER
from .logs import log, log_failure
from .remote_images import put_into
from .reply import Aside, Delivery
from .service import Service
from .serving import Prepared, Serving
from .steering import Running
from .wire import (
    STREAM,
    ClientGone,
    Header,
    JsonResponse,
    body_of,
    encoded,
    error_response,
    to_json,
)

LAST_WORDS = 1.0
SILENCE = 5.0  # seconds until a silent stream sends a keepalive; clients give up on silent ones
SMALL = 4096  # tokens of an answer that is encoded on the event loop
_RETRY = b"1"  # seconds, the Retry-After of refused requests
_LOADING = encoded(Aside(": the model is being loaded"))
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")

Work: TypeAlias = Callable[["Exchange"], Awaitable[Any]]
"""What an endpoint does; returns the answer, as bytes or as a value for JSON, or ``None`` if it has
already streamed the answer."""


class Exchange(Response):
    """One request, as a response that FastAPI sends; ``endpoint`` is its name in metrics and in the
    log. ``aside``: the request is about another one, and takes no place."""

    def __init__(
        self, service: Service, endpoint: str, work: Work, request: Request, *, aside: bool = False
    ) -> None:
        super().__init__()
        self.service = service
        self.scope: Scope = request.scope
        self.id = secrets.token_hex(12)
        given = request.headers.get("x-request-id", "").encode("latin-1")
        self.name = given if _REQUEST_ID.fullmatch(given) else self.id.encode()
        """The request's id: the client's X-Request-Id, or a random one."""
        self.last_event = request.headers.get("last-event-id", "")
        """The id of the last event that the client received of the stream that it resumes."""
        self.owner: str = self.scope.get(OWNER, "")
        """Whose request it is: a digest of its key; empty if the server needs none."""
        self.fields: dict[str, Any] = {}
        """Further fields for the log; never anything that a person wrote."""
        self.last_words: Callable[[BaseException], bytes] = lambda error: b""
        """Makes the end of a stream that fails."""
        self.ignored: Sequence[str] = ()
        """Accepted fields without effect, listed in a header."""
        self.told: Told | None = None
        """The answer that this request sends; it can be steered meanwhile."""
        self._aside, self._endpoint, self._work = aside, endpoint, work
        self._streams = self._answered = self._sent = False
        self._status = 200
        self._used: Entry | None = None  # the model to release
        self._watcher: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._interruption: BaseException | None = None
        self.stage = 0
        """0: waiting; 1: prompts are being run; 2: all prompts have been run."""
        self._limit = asyncio.timeout(None)  # for this stage
        self.began = time.perf_counter()

    # ---- for the work ------------------------------------------------------------------------

    async def read(self, model: type[B]) -> Read[B]:
        """The body as this model; from then on, a client that hangs up interrupts the work."""
        data = await self.arrived()
        return await self.service.workers.run(read, data, model, self.service.unknown_fields)

    async def arrived(self) -> bytes:
        """The body, as bytes; the request takes its place once it has arrived."""
        data = await body_of(self._receive, self.scope["headers"], self.service.body_limit)
        if not self._aside:
            self.service.admit(self.interrupt)
        self._watcher = asyncio.create_task(self._watch_client())
        return data

    async def use(self, name: object) -> Serving:
        """The model of this name, which stays loaded until the exchange ends."""
        entry = self.service.fleet.catalogue.meant(name)
        self.fields["model"] = entry.name
        serving = await self.service.fleet.use(entry)
        self._used = entry
        return serving

    def heard(self, *, all_run: bool) -> None:
        """Note that prompts are being run, or that all of them were; the stage never goes back."""
        stage, seconds = 2 if all_run else 1, self.service.settings.request_timeout
        if stage > self.stage:
            self.stage = stage
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(now + seconds if all_run and seconds else None)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send a piece of a stream (unless ``more``, the last one); waits for a slow reader."""
        if not self._streams:  # from now on a failure can only be an event
            self._streams = True
            headers = [*STREAM, *self._own_headers()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        if data or not more:
            self._answered = not more
            await self._send({"type": "http.response.body", "body": data, "more_body": more})
            self._sent = not more

    # ---- from start to end -------------------------------------------------------------------

    def interrupt(self, error: BaseException) -> None:
        """End the work with an error, unless it has ended."""
        if self._task is not None and self._interruption is None:
            self._interruption = error
            self._task.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Do the work and answer, with an error if necessary."""
        service, outcome = self.service, "completed"
        self._receive, self._send = receive, send
        self._task = asyncio.current_task()
        try:
            service.enter(self.interrupt, aside=self._aside)
            self._limit = asyncio.timeout(service.settings.queue_timeout or None)
            async with self._limit:
                answer = await self._work(self)
                if answer is not None:
                    await self._respond(JsonResponse(answer))
        except asyncio.CancelledError:
            if self._interruption is None:
                raise
            assert self._task is not None
            self._task.uncancel()
            outcome = await self._fail(self._interruption)
        except Exception as error:
            outcome = await self._fail(self._late() if self._limit.expired() else error)
        finally:
            self._release()
            service.leave(self.interrupt)
        self._account(outcome)

    def _late(self) -> RequestError:
        """The error for a request whose time limit has passed."""
        settings = self.service.settings
        if self.stage == 2:
            reason = f"the answer took more than {settings.request_timeout:g} seconds; ask for"
            return RequestError(f"{reason} fewer tokens", status=504, code="timeout")
        reason = f"the request has waited for more than {settings.queue_timeout:g} seconds"
        return RequestError(f"{reason}; try again later", status=503, code="queue_timeout")

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._sent:  # the connection also ends after the last byte
            self.interrupt(ClientGone())

    def _release(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
        told, self.told = self.told, None
        if told is not None:
            waits = isinstance(self._interruption, ClientGone)
            self.service.answers.leave(told, waits=waits)
        used, self._used = self._used, None
        if used is not None:
            self.service.fleet.release(used)

    async def _fail(self, error: BaseException) -> str:
        """Send the error to the client, and return the outcome of the request."""
        if isinstance(error, ClientGone):
            return "client_gone"
        self._status, _ = error_body(error)
        if self._status == 500:
            log_failure("a request failed", error, id=self.id)
        last = self.last_words(error) if self._streams and not self._answered else b""
        self._release()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                if last:
                    await self.write(last, more=False)
                elif not self._answered:
                    await self._respond(error_response(error, path=self.scope["path"]))
        if getattr(error, "code", None) in ("queue_timeout", "timeout"):
            return "timeout"
        known = {429: "busy", 503: "unavailable"}
        return known.get(self._status, "invalid" if self._status < 500 else "failed")

    async def _respond(self, response: Response) -> None:
        self._answered = True
        response.raw_headers.extend(self._own_headers())
        await response(self.scope, self._receive, self._send)
        self._sent = True

    def _own_headers(self) -> list[Header]:
        headers = [(b"x-request-id", self.name)]
        if self.ignored:
            headers.append((b"x-mlxgen-ignored", header_of(self.ignored).encode()))
        if self._status in (429, 503):
            headers.append((b"retry-after", _RETRY))
        if self.service.is_stopping:
            headers.append((b"connection", b"close"))
        return headers

    def _account(self, outcome: str) -> None:
        seconds, metrics = time.perf_counter() - self.began, self.service.metrics
        metrics.requests.labels(self._endpoint, outcome).inc()
        if "model" in self.fields:
            metrics.model_requests.labels(self.fields["model"]).inc()
        if outcome == "completed":
            metrics.request_seconds.labels(self._endpoint).observe(seconds)
        said = f"{self.scope['method']} {self._endpoint} {self._status}"
        log(logging.INFO, said, outcome=outcome, seconds=seconds, id=self.id, **self.fields)


# ---- the work of the endpoints that generate text ------------------------------------------------


async def generate(exchange: Exchange, api: Api) -> bytes | None:
    """Answer a request of this API, from its body to the last event."""
    id, service = api.prefix + exchange.id, exchange.service
    exchange.last_words = lambda error: encoded(api.fail(error, id)) + api.end
    data = await exchange.arrived()
    if exchange.last_event:
        told = await _gone_on(exchange)
    else:
        given = await service.workers.run(read, data, api.body, service.unknown_fields)
        loading = asyncio.ensure_future(exchange.use(given.request.model))
        try:  # while the model loads, a stream begins, and sends keepalives
            while given.request.stream and not loading.done():
                if not (await asyncio.wait({loading}, timeout=SILENCE))[0]:
                    await exchange.write(_LOADING)
            serving = await loading
        finally:
            loading.cancel()
        if serving.fetches:
            await put_into(vars(given.request))
        prepared = await service.workers.run(serving.prepared, given, api.asks)
        told = _begun(exchange, prepared, serving, id, api)
    answer = told.answer
    if answer is None:
        return None
    whole = None
    try:
        if answer.ask.stream:  # in its own task, each wake-up skips the coroutines around it
            task = asyncio.create_task(_stream(exchange, told, answer))
            task.add_done_callback(lambda task: task.cancelled() or task.exception())  # retrieved
            await task
        else:
            whole = await _whole(exchange, answer)
    except MlxgenError as error:  # name the request's own fields
        known = as_request_error(error, answer.ask.names)
        if known is error or known.status >= 500:
            raise
        raise known from error
    usages = answer.box.usages
    exchange.fields |= {
        "prompt": sum(usage.prompt_tokens for usage in usages),
        "cached": sum(usage.cached_tokens for usage in usages),
        "completion": sum(usage.completion_tokens for usage in usages),
        "sequences": len(usages),
        "stream": answer.ask.stream,
    }
    if violated := [usage.violates for usage in usages if usage.violates]:
        exchange.fields["violates"] = violated[0]
    longest = max(usage.completion_tokens for usage in usages)
    if longest > 1 and "resumed" not in exchange.fields:
        seconds = time.perf_counter() - exchange.began - exchange.fields["first"]
        service.metrics.token_seconds.observe(seconds / (longest - 1))
    return whole


def _begun(exchange: Exchange, prepared: Prepared, serving: Serving, id: str, api: Api) -> Told:
    """Let the engine generate sequences, or one of the operator's programs write the text, until
    these end or the exchange does."""
    ask, sequences = prepared
    bound, field = sequences[0].constraint, ask.names["filters"]
    notes = [] if bound is None else [f"{field}:{note}" for note in bound.left_out]  # on schemas
    exchange.ignored = [*ask.ignored, *notes, *(() if ask.held is None else ask.held.left_out)]
    box = Mailbox(len(sequences), watched=ask.watched, grows=ask.steered is not None)
    answer = Answer(id, ask, ask.make_reply(ask, id, int(time.time())), serving, box)
    told = Told(answer, exchange.owner, api.end)
    exchange.told = told
    exchange.service.answers.hold(told, exchange.interrupt, exchange.name.decode())
    if ask.steered is None:
        answer.accepted = serving.engine.submit(sequences, box, exchange.owner)
    else:
        exchange.fields["program"] = ask.steered.name
        slow, opens_text = serving.model.registry.slow, ask.questions[0].prompt.opens_text
        program = Running(ask.steered, sequences[0], slow, opens_text=opens_text)
        answer.accepted = serving.engine.steer(program, box)
        exchange.heard(all_run=False)  # what a program runs first, and when, is up to it
    return told


async def _gone_on(exchange: Exchange) -> Told:
    """Resume a stream: send the events after the last one that the client received."""
    told, number = await exchange.service.answers.taken(exchange.owner, exchange.last_event)
    exchange.told = told
    exchange.service.answers.hold(told, exchange.interrupt, exchange.name.decode())
    exchange.fields["resumed"] = told.id
    answer = told.answer
    if answer is not None:
        serving = await exchange.use(answer.ask.name)
        if serving is not answer.serving:
            raise gone("its model was unloaded meanwhile")
        serving.engine.resume(answer.box)
    await exchange.write(told.after(number), more=answer is not None)
    return told


def _hear(exchange: Exchange, news: Sequence[Delivery]) -> bool:
    """Note the progress of an answer; return True once there is nothing more to note."""
    for each in news:
        if each.progress is not None:
            exchange.heard(all_run=each.progress.is_prefilled)
        if each.chunks and "first" not in exchange.fields:
            if each.progress is None:
                exchange.heard(all_run=True)
            exchange.fields["first"] = seconds = time.perf_counter() - exchange.began
            if "resumed" not in exchange.fields:
                exchange.service.metrics.first_token_seconds.observe(seconds)
    return exchange.stage == 2 and "first" in exchange.fields


async def _stream(exchange: Exchange, told: Told, answer: Answer) -> None:
    """Send the headers once the engine has accepted the request, then events as chunks come.

    Never silent for longer than ``SILENCE``: if the engine has neither accepted nor refused by
    then, the headers are sent anyway, and an error becomes an event.
    """
    box, reply, now = answer.box, answer.reply, asyncio.get_running_loop().time
    if answer.accepted is not None:
        await asyncio.wait({answer.accepted}, timeout=SILENCE)
    if box.error is not None:
        raise box.error
    exchange.last_words = lambda error: told.encoded(
        [*answer.opening(), reply.fail(error)], last=True
    )
    await exchange.write(b"")
    spoke, heard = now(), False
    while True:
        try:
            async with asyncio.timeout_at(spoke + SILENCE):
                news = await box.take()
        except TimeoutError:
            sign, spoke = reply.alive(), now()
            aside = all(isinstance(each, Aside) for each in sign)
            await exchange.write(told.encoded([*([] if aside else answer.opening()), *sign]))
            continue
        heard = heard or _hear(exchange, news)
        events = answer.events_of(news)
        if box.finished:
            break
        spoke = now() if events else spoke
        await exchange.write(told.encoded(events))
    last = told.encoded([*events, *reply.finish(box.usages)], last=True)
    await exchange.write(last, more=False)


async def _whole(exchange: Exchange, answer: Answer) -> bytes:
    """The whole answer: the fold of the events of a stream, as JSON."""
    reply, box, heard = answer.reply, answer.box, False
    while news := await box.take():
        heard = heard or _hear(exchange, news)
        answer.fold(answer.events_of(news))
    answer.fold(reply.finish(box.usages))
    if sum(usage.completion_tokens for usage in box.usages) <= SMALL:
        return to_json(reply.whole())
    return await asyncio.to_thread(lambda: to_json(reply.whole()))
