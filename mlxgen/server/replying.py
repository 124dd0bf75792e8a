"""How a request for generated text is replied to, streamed or whole.

Owns the way from a body to the last chunk of its sequences. Must never know how a request is
interrupted or how events look. Invariant: the same chunks are pushed into the reply, in the
same order, whether the client streams or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..engine import Chunk, Progress
from ..errors import MlxgenError
from .call import Aside, BranchedReply, Event, QueuedReply, Reply, Sent
from .engine.mailbox import Delivery, Mailbox
from .errors import RequestError, as_request_error, error_body
from .exchange import Exchange
from .fleet.serving import Serving
from .http.body import parse_body
from .http.responses import DONE, to_json, to_large_json
from .jobs import Body, Parse, Prepared

MOST = 1 << 20  # tokens and alternatives in a whole answer
SILENCE = 5.0  # seconds after which a stream gives a sign of life; clients give up on silent ones
LOADING = Aside(": the model is being loaded")
SMALL = 4096  # the same, in an answer that is written in one go


class Api(NamedTuple):
    """What an endpoint speaks: ``parse`` reads its bodies, its ids begin with ``prefix``, ``end``
    follows the last event of a stream, and ``fail`` makes the event that ends a stream of this id
    which fails before its request was parsed."""

    parse: Parse
    prefix: str
    end: bytes = DONE
    fail: Callable[[BaseException, str], Event] = lambda error, id: error_body(error)[1]


async def reply_to(exchange: Exchange, api: Api) -> None:
    """The work of one endpoint."""
    id = api.prefix + exchange.id
    exchange.end = api.end
    exchange.describe_failure = lambda error: [api.fail(error, id)]
    size, body = await read_body(exchange)
    serving = await _loaded(exchange, body)
    prepared = await serving.preparation.sequences(size, body, api.parse)
    exchange.understood()
    call = prepared.call
    exchange.ignored = [*call.ignored, *_left_out(prepared)]
    reply = call.reply(id=id, created=int(time.time()))
    if call.steered is None:
        mailbox = exchange.submit(prepared.sequences, watched=call.watched)
    else:
        mailbox = exchange.control(prepared)
    send = _stream if call.stream else _whole
    try:
        await send(exchange, reply, mailbox)
    except MlxgenError as error:
        known = as_request_error(error, call.params)
        if known is error or known.status >= 500:
            raise
        raise known from error
    _account(exchange, prepared, mailbox)


def _left_out(prepared: Prepared) -> Sequence[str]:
    """What of the schemas is not enforced, after the field that has them."""
    call = prepared.call
    field = call.params.get("filters", "filters")
    bound = [request.constraint for request in prepared.sequences[:1]]
    notes = [f"{field}:{note}" for each in bound if each is not None for note in each.left_out]
    return notes if call.held is None else [*notes, *call.held.left_out]


async def read_body(exchange: Exchange) -> tuple[int, Body]:
    """The object in a body, and its size in bytes."""
    data = await exchange.body()
    return len(data), await exchange.service.lanes.run(len(data), lambda: parse_body(data))


async def _loaded(exchange: Exchange, body: Body) -> Serving:
    """The model that a body names. While it is loaded, a stream begins, and gives signs of life."""
    waiting = asyncio.ensure_future(exchange.use(body.get("model")))
    try:
        while body.get("stream") is True:
            done, _ = await asyncio.wait({waiting}, timeout=SILENCE)
            if done:
                break
            await exchange.write([LOADING])
        return await waiting
    finally:
        waiting.cancel()


async def _stream(exchange: Exchange, reply: Reply, mailbox: Mailbox) -> None:
    """Send the headers once the engine has accepted the request, and then events as chunks come.

    Never silent for longer than ``SILENCE``: if the engine has not said a word by then, an error is
    an event as well. While the client keeps up, events are sent from where the chunks arrive, and
    this is not woken.
    """
    begun = False
    now = asyncio.get_running_loop().time
    spoke = now()

    def opening() -> Sequence[Sent]:
        nonlocal begun
        begun, before = True, begun
        return [] if before else reply.start()

    def events_of(items: Sequence[Delivery]) -> list[Sent]:
        events: list[Sent] = []
        for item in items:
            place, chunks, usage, progress = item[:4]
            _heard(exchange, chunks, progress)
            new = _learned(reply, item)
            if chunks:
                new += [e for c in chunks for e in reply.push(place, c, progress, usage)]
            elif progress is not None:
                new += reply.prefilled(place, progress)
            elif item.ahead is not None:
                new += reply.queued(place, item.ahead) if isinstance(reply, QueuedReply) else ()
                if not new:
                    continue
            if new or progress is None or progress.prefilled:
                events += opening()
            events += new
        return events

    def spoken(events: list[Sent]) -> list[Sent]:
        nonlocal spoke
        spoke = now() if events else spoke
        return events

    def send(items: list[Delivery]) -> bool:
        if not exchange.flows:
            return False
        exchange.push(spoken(events_of(items)))
        return True

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE):
            await mailbox.accepted()
    exchange.describe_failure = lambda error: [*opening(), reply.fail(error)]
    await exchange.write([])
    spoke = now()
    while True:
        try:
            async with asyncio.timeout_at(spoke + SILENCE):
                items = await mailbox.take(send)
        except TimeoutError:
            if now() >= spoke + SILENCE:  # nothing was sent meanwhile from where it arrived
                sign = reply.alive()
                aside = all(isinstance(each, Aside) for each in sign)
                await exchange.write(spoken([*([] if aside else opening()), *sign]))
            continue
        events = spoken(events_of(items))
        if mailbox.finished:
            break
        await exchange.write(events)
    await exchange.finish([*events, *reply.finish(mailbox.usages)])


async def _whole(exchange: Exchange, reply: Reply, mailbox: Mailbox) -> None:
    size = 0

    def read(items: Sequence[Delivery]) -> bool:
        nonlocal size
        for item in items:
            _learned(reply, item)
            place, chunks, usage, progress = item[:4]
            _heard(exchange, chunks, progress)
            for chunk in chunks:
                reply.push(place, chunk, progress, usage)
                size += 1 + len(chunk.top) + sum(1 + len(score.top) for score in chunk.prompt)
        if size > MOST:
            raise RequestError(
                f"the answer has more than {MOST} tokens and alternatives; stream it, or ask for "
                "fewer",
                status=413,
                code="answer_too_large",
            )
        return True

    while items := await mailbox.take(read):
        read(items)
    usages = mailbox.usages
    if size <= SMALL:
        body = to_json(reply.complete(usages))
    else:
        body = await exchange.service.lanes.run(size, lambda: to_large_json(reply.complete(usages)))
    await exchange.answer(body)


def _learned(reply: Reply, item: Delivery) -> list[Sent]:
    """Tell the reply about a branch; returns the events of one that is new."""
    if item.branch is None and item.facts is None:
        return []
    assert isinstance(reply, BranchedReply)
    events: list[Sent] = []
    if item.branch is not None:
        events += reply.opened(item.place, item.branch)
    if item.facts is not None:
        reply.learned(item.place, item.facts)
    return events


def _heard(exchange: Exchange, chunks: Sequence[Chunk], progress: Progress | None) -> None:
    """Note how far a sequence is, and when the first token came."""
    if progress is not None:
        exchange.heard(all_run=progress.is_prefilled)
    if not chunks or "first" in exchange.fields:
        return
    if progress is None:
        exchange.heard(all_run=True)
    exchange.fields["first"] = seconds = exchange.seconds
    exchange.service.metrics.first_token_seconds.observe(seconds)


def _account(exchange: Exchange, prepared: Prepared, mailbox: Mailbox) -> None:
    usages = mailbox.usages
    completion = sum(usage.completion_tokens for usage in usages)
    exchange.fields |= {
        "prompt": sum(usage.prompt_tokens for usage in usages),
        "cached": sum(usage.cached_tokens for usage in usages),
        "completion": completion,
        "sequences": len(usages),
        "stream": prepared.call.stream,
    }
    if violated := [usage.violates for usage in usages if usage.violates]:
        exchange.fields["violates"] = violated[0]
    longest = max(usage.completion_tokens for usage in usages)
    if longest > 1:
        seconds = exchange.seconds - exchange.fields["first"]
        exchange.service.metrics.token_seconds.observe(seconds / (longest - 1))
