"""From a body to the last word of its answer: the work of the endpoints whose text is generated.

Must never know how events look, nor what ends an exchange early. Invariant: the same chunks are
pushed into the reply, in the same order, whether the client streams or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import MlxgenError
from .ask import Ask
from .engine.mailbox import Delivery, Mailbox
from .errors import RequestError, as_request_error, error_body
from .exchange import Exchange
from .fleet.member import Serving
from .jobs import Body, Parse
from .reply import Aside, Event, Reply, Sent
from .wire import DONE, to_json

SILENCE = 5.0  # seconds after which a stream gives a sign of life; clients give up on silent ones
MOST = 1 << 20  # tokens and alternatives in a whole answer
SMALL = 4096  # the same, in an answer that is written in one go
LOADING = Aside(": the model is being loaded")


class Api(NamedTuple):
    """What an endpoint speaks: ``parse`` reads its bodies, its ids begin with ``prefix``, ``end``
    follows the last event of a stream, and ``fail`` makes the event that ends a stream of this id
    which fails before its request was parsed."""

    parse: Parse
    prefix: str
    end: bytes = DONE
    fail: Callable[[BaseException, str], Event] = lambda error, id: error_body(error)[1]


async def generate(exchange: Exchange, api: Api) -> None:
    """The work of one endpoint."""
    id = api.prefix + exchange.id
    exchange.end = api.end
    exchange.describe_failure = lambda error: [api.fail(error, id)]
    body = await exchange.read()
    if exchange.last_event:
        begun = await exchange.go_on()
        if begun is None:
            await exchange.finish([])
        else:
            await _send(exchange, begun.ask, begun.reply, begun.mailbox)
        return
    serving = await _loaded(exchange, body)
    prepared = await serving.preparation.sequences(body, api.parse)
    ask = prepared.ask
    bound, field = prepared.sequences[0].constraint, ask.names["filters"]
    notes = [] if bound is None else [f"{field}:{note}" for note in bound.left_out]  # of schemas
    exchange.ignored = [*ask.ignored, *notes, *(() if ask.held is None else ask.held.left_out)]
    reply = ask.reply(id=id, created=int(time.time()))
    box = exchange.submit(id, prepared, reply)
    await _send(exchange, ask, reply, box)


async def _send(exchange: Exchange, ask: Ask, reply: Reply, box: Mailbox) -> None:
    """Send what is generated; errors name the fields of the request."""
    try:
        await (_stream if ask.stream else _whole)(exchange, reply, box)
    except MlxgenError as error:
        known = as_request_error(error, ask.names)
        if known is error or known.status >= 500:
            raise
        raise known from error
    _account(exchange, ask, box)


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


class _Telling:
    """The events of a reply in their order: its first ones before all others, but not before it is
    known how much of the prompt is left to run."""

    def __init__(self, exchange: Exchange, reply: Reply) -> None:
        self._exchange = exchange
        self._reply = reply
        self._begun = "resumed" in exchange.fields

    def opening(self) -> Sequence[Sent]:
        begun, self._begun = self._begun, True
        return [] if begun else self._reply.start()

    def events(self, items: Sequence[Delivery]) -> list[Sent]:
        exchange, events = self._exchange, list[Sent]()
        for item in items:
            progress = item.progress
            if progress is not None:
                exchange.heard(all_run=progress.is_prefilled)
            if item.chunks and "first" not in exchange.fields:
                if progress is None:
                    exchange.heard(all_run=True)
                exchange.fields["first"] = seconds = exchange.seconds
                if "resumed" not in exchange.fields:
                    exchange.service.metrics.first_token_seconds.observe(seconds)
            new = self._reply.take(item)
            runs = progress is not None and not progress.prefilled
            if new or not (runs or item.ahead is not None):
                events += self.opening()
            events += new
        return events


async def _stream(exchange: Exchange, reply: Reply, box: Mailbox) -> None:
    """Send the headers once the engine has accepted the request, and then events as chunks come.

    Never silent for longer than ``SILENCE``: if the engine has not said a word by then, an error is
    an event as well.
    """
    telling, now = _Telling(exchange, reply), asyncio.get_running_loop().time
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE):
            await box.accepted()
    exchange.describe_failure = lambda error: [*telling.opening(), reply.fail(error)]
    await exchange.write([])
    spoke = now()
    while True:
        try:
            async with asyncio.timeout_at(spoke + SILENCE):
                items = await box.take()
        except TimeoutError:
            sign, spoke = reply.alive(), now()
            aside = all(isinstance(each, Aside) for each in sign)
            await exchange.write([*([] if aside else telling.opening()), *sign])
            continue
        events = telling.events(items)
        if box.finished:
            break
        spoke = now() if events else spoke
        await exchange.write(events)
    await exchange.finish([*events, *reply.finish(box.usages)])


async def _whole(exchange: Exchange, reply: Reply, box: Mailbox) -> None:
    """Send what the events of a stream come to."""
    telling, size = _Telling(exchange, reply), 0

    def fold(events: Sequence[Sent]) -> None:
        for event in events:
            if isinstance(event, dict):
                reply.fold(event)

    while items := await box.take():
        fold(telling.events(items))
        for chunk in [chunk for item in items for chunk in item.chunks]:
            size += 1 + len(chunk.top) + sum(1 + len(score.top) for score in chunk.prompt)
        if size > MOST:
            raise RequestError(
                f"the answer has more than {MOST} tokens and alternatives; stream it, or ask for "
                "fewer",
                status=413,
                code="answer_too_large",
            )
    fold(reply.finish(box.usages))
    if size <= SMALL:
        body = to_json(reply.whole())
    else:
        body = await asyncio.to_thread(lambda: to_json(reply.whole()))
    await exchange.answer(body)


def _account(exchange: Exchange, ask: Ask, box: Mailbox) -> None:
    usages = box.usages
    exchange.fields |= {
        "prompt": sum(usage.prompt_tokens for usage in usages),
        "cached": sum(usage.cached_tokens for usage in usages),
        "completion": sum(usage.completion_tokens for usage in usages),
        "sequences": len(usages),
        "stream": ask.stream,
    }
    if violated := [usage.violates for usage in usages if usage.violates]:
        exchange.fields["violates"] = violated[0]
    longest = max(usage.completion_tokens for usage in usages)
    if longest > 1 and "resumed" not in exchange.fields:
        seconds = exchange.seconds - exchange.fields["first"]
        exchange.service.metrics.token_seconds.observe(seconds / (longest - 1))
