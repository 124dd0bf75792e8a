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
from .engine.mailbox import Delivery, Mailbox
from .errors import RequestError, as_request_error, error_body
from .exchange import Exchange
from .fleet.member import Serving
from .jobs import Body, Parse, Prepared
from .reply import Aside, Event, Reply, Sent
from .validation import parse_body
from .wire import DONE, to_json

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
    body = await read_body(exchange)
    serving = await _loaded(exchange, body)
    prepared = await serving.preparation.sequences(body, api.parse)
    ask = prepared.ask
    exchange.ignored = [*ask.ignored, *_left_out(prepared)]
    reply = ask.reply(id=id, created=int(time.time()))
    if ask.steered is None:
        mailbox = exchange.submit(prepared.sequences, watched=ask.watched)
    else:
        mailbox = exchange.control(prepared)
    exchange.name(id, ask, mailbox)
    send = _stream if ask.stream else _whole
    try:
        await send(exchange, reply, mailbox)
    except MlxgenError as error:
        known = as_request_error(error, ask.names)
        if known is error or known.status >= 500:
            raise
        raise known from error
    _account(exchange, prepared, mailbox)


def _left_out(prepared: Prepared) -> Sequence[str]:
    """What of the schemas is not enforced, after the field that has them."""
    ask = prepared.ask
    bound = [request.constraint for request in prepared.sequences[:1]]
    notes = [
        f"{ask.names['filters']}:{note}"
        for each in bound
        if each is not None
        for note in each.left_out
    ]
    return notes if ask.held is None else [*notes, *ask.held.left_out]


async def read_body(exchange: Exchange) -> Body:
    """The object in a body."""
    data = await exchange.body()
    return await exchange.service.workers.run(lambda: parse_body(data))


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


class Telling:
    """The events of a reply in their order: its first ones before all others, but not before it is
    known how much of the prompt is left to run."""

    def __init__(self, exchange: Exchange, reply: Reply) -> None:
        self._exchange = exchange
        self._reply = reply
        self._begun = False

    def opening(self) -> Sequence[Sent]:
        begun, self._begun = self._begun, True
        return [] if begun else self._reply.start()

    def events(self, items: Sequence[Delivery]) -> list[Sent]:
        events: list[Sent] = []
        for item in items:
            _heard(self._exchange, item.chunks, item.progress)
            new = self._reply.take(item)
            runs = item.progress is not None and not item.progress.prefilled
            if new or not (runs or item.ahead is not None):
                events += self.opening()
            events += new
        return events


async def _stream(exchange: Exchange, reply: Reply, mailbox: Mailbox) -> None:
    """Send the headers once the engine has accepted the request, and then events as chunks come.

    Never silent for longer than ``SILENCE``: if the engine has not said a word by then, an error is
    an event as well.
    """
    telling = Telling(exchange, reply)
    now = asyncio.get_running_loop().time
    spoke = now()

    async def say(events: list[Sent]) -> None:
        nonlocal spoke
        spoke = now() if events else spoke
        await exchange.write(events)

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SILENCE):
            await mailbox.accepted()
    exchange.describe_failure = lambda error: [*telling.opening(), reply.fail(error)]
    await exchange.write([])
    spoke = now()
    while True:
        try:
            async with asyncio.timeout_at(spoke + SILENCE):
                items = await mailbox.take()
        except TimeoutError:
            sign = reply.alive()
            aside = all(isinstance(each, Aside) for each in sign)
            await say([*([] if aside else telling.opening()), *sign])
            continue
        events = telling.events(items)
        if mailbox.finished:
            break
        await say(events)
    await exchange.finish([*events, *reply.finish(mailbox.usages)])


async def _whole(exchange: Exchange, reply: Reply, mailbox: Mailbox) -> None:
    """Send what the events of a stream come to."""
    telling, size = Telling(exchange, reply), 0

    def fold(events: Sequence[Sent]) -> None:
        for event in events:
            if isinstance(event, dict):
                reply.fold(event)

    while items := await mailbox.take():
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
    fold(reply.finish(mailbox.usages))
    if size <= SMALL:
        body = to_json(reply.whole())
    else:
        body = await asyncio.to_thread(lambda: to_json(reply.whole()))
    await exchange.answer(body)


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
        "stream": prepared.ask.stream,
    }
    if violated := [usage.violates for usage in usages if usage.violates]:
        exchange.fields["violates"] = violated[0]
    longest = max(usage.completion_tokens for usage in usages)
    if longest > 1:
        seconds = exchange.seconds - exchange.fields["first"]
        exchange.service.metrics.token_seconds.observe(seconds / (longest - 1))
