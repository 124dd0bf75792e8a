"""The endpoints: which path does which work.

Owns paths, methods and what ``/docs`` says about them. Must never know how the work is done.
Invariant: every unsuccessful answer has the form of OpenAI's errors.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from .bodies import validated
from .control import ControlRequest, ReasoningControl, control, reasoning_control
from .errors import RequestError, as_messages_error, error_body
from .exchange import Exchange, Work
from .fields import ModelRequest
from .fleet.catalogue import Entry
from .fleet.member import Status
from .llama import InfillRequest, LlamaRequest, parse_infill, parse_llama, props_of, slots_of
from .messages import CountRequest, MessagesRequest, count_tokens, parse_messages
from .metrics import CONTENT_TYPE
from .openai import ChatRequest, CompletionRequest, apply_template, parse_chat, parse_completion
from .openapi import answers, body_of
from .page import INDEX, read_page, unless_kept
from .responses import ResponsesRequest, parse_responses
from .responses import failed as response_failed
from .service import Service
from .telling import Api, generate
from .token_work import DetokenizeRequest, TokenizeRequest, detokenize, tokenize, work_on_tokens
from .wire import JsonResponse, to_json

Answers: TypeAlias = dict[int | str, dict[str, Any]]


def _good(content: dict[str, Any], description: str = "The answer") -> Answers:
    return {200: {"description": description, "content": content}}


_BUSY = (401, 403, 503)
_BODY = (400, 404, 408, 413, 415, 429, 500, 504, *_BUSY)
_TEXT = {"schema": {"type": "string"}}
_OBJECT: dict[str, Any] = {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}
_JSON = {"application/json": {"schema": _OBJECT}}
_LIST = {"application/json": {"schema": _OBJECTS}}
_ANSWER = _good(_JSON)


def _streamed(schema: dict[str, Any]) -> Answers:
    content = {"application/json": {"schema": schema}, "text/event-stream": {"schema": {}}}
    return _good(content, "The answer, or its events with stream: true")


_HEALTH: Answers = _ANSWER | {503: {"description": "Not ready", "content": _JSON}} | answers(403)


class Answering(Response):
    """An answer that is written by its exchange."""

    def __init__(self, service: Service, endpoint: str, work: Work, *, aside: bool = False) -> None:
        super().__init__()
        self._service = service
        self._endpoint = endpoint
        self._work = work
        self._aside = aside

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, self._endpoint, scope, receive, send, aside=self._aside)
        await exchange.run(self._work)


# ---- work on a body --------------------------------------------------------------------------


async def chat_completions(exchange: Exchange) -> None:
    """Answer a conversation, rendered with the model's chat template."""
    await generate(exchange, Api(parse_chat, "chatcmpl-"))


async def completions(exchange: Exchange) -> None:
    """Continue raw text or tokens."""
    await generate(exchange, Api(parse_completion, "cmpl-"))


async def responses(exchange: Exchange) -> None:
    """Answer a conversation, as in OpenAI's Responses API."""
    await generate(exchange, Api(parse_responses, "resp_", b"", response_failed))


async def llama_completion(exchange: Exchange) -> None:
    """The same in llama.cpp's form and names: n_predict (no limit), n_probs and others."""
    await generate(exchange, Api(parse_llama, "cmpl-", b""))


async def llama_infill(exchange: Exchange) -> None:
    """What fits between input_prefix and input_suffix, in the same form."""
    await generate(exchange, Api(parse_infill, "cmpl-", b""))


async def messages(exchange: Exchange) -> None:
    """Answer a conversation, as in Anthropic's Messages API."""
    await generate(
        exchange,
        Api(parse_messages, "msg_", b"", lambda error, _: as_messages_error(*error_body(error))),
    )


async def count_message_tokens(exchange: Exchange) -> None:
    """The tokens of a conversation, as in Anthropic's Messages API."""
    await work_on_tokens(exchange, count_tokens)


async def tokenize_text(exchange: Exchange) -> None:
    """The tokens of a text or a chat."""
    await work_on_tokens(exchange, tokenize)


async def apply_chat_template(exchange: Exchange) -> None:
    """The text of the prompt that a chat completion with this body would have."""
    await work_on_tokens(exchange, apply_template)


async def detokenize_tokens(exchange: Exchange) -> None:
    """The text of tokens."""
    await work_on_tokens(exchange, detokenize)


async def load_model(exchange: Exchange) -> None:
    """Load a model, and answer when it is loaded; others may be unloaded for it."""
    await exchange.use((await _named(exchange)).name)
    await exchange.answer(to_json({"success": True}))


async def unload_model(exchange: Exchange) -> None:
    """Unload a model, as soon as it answers no more requests."""
    fleet = exchange.service.fleet
    member = fleet.members[(await _named(exchange)).name]
    if member.status is Status.LOADING:
        raise RequestError(
            f"{member.entry.name} is being loaded; try again when it is",
            status=409,
            code="model_loading",
        )
    fleet.dismiss(member)
    await exchange.answer(to_json({"success": True}))


async def _named(exchange: Exchange) -> Entry:
    """The model that a ``ModelRequest`` names, strictly."""
    body = await exchange.read()
    return exchange.service.fleet.catalogue.named(validated(body, ModelRequest).model)


_WORK: tuple[tuple[str, Work, type[BaseModel], Answers], ...] = (
    ("/v1/chat/completions", chat_completions, ChatRequest, _streamed(_OBJECT)),
    ("/v1/completions", completions, CompletionRequest, _streamed(_OBJECT)),
    ("/v1/responses", responses, ResponsesRequest, _streamed(_OBJECT)),
    (
        "/completion",
        llama_completion,
        LlamaRequest,
        _streamed({"anyOf": [_OBJECT, _OBJECTS]}),  # a list for several prompts
    ),
    ("/infill", llama_infill, InfillRequest, _streamed(_OBJECT)),
    ("/v1/messages", messages, MessagesRequest, _streamed(_OBJECT)),
    ("/v1/messages/count_tokens", count_message_tokens, CountRequest, _ANSWER),
    ("/tokenize", tokenize_text, TokenizeRequest, _ANSWER),
    ("/apply-template", apply_chat_template, ChatRequest, _ANSWER),
    ("/detokenize", detokenize_tokens, DetokenizeRequest, _ANSWER),
    ("/v1/models/load", load_model, ModelRequest, _ANSWER),
    ("/v1/models/unload", unload_model, ModelRequest, _ANSWER | answers(409)),
    ("/v1/requests/{id}/control", control, ControlRequest, _ANSWER | answers(409)),
    ("/v1/chat/completions/control", reasoning_control, ReasoningControl, _ANSWER | answers(409)),
)

BODIES = tuple({body: None for _, _, body, _ in _WORK})
"""The models of all bodies."""

# ---- all endpoints ---------------------------------------------------------------------------


def make_router(service: Service) -> APIRouter:
    """All endpoints."""
    router = APIRouter()
    for path, work, body, answer in _WORK:
        router.add_api_route(
            path,
            _answering(service, path, work),
            methods=["POST"],
            name=work.__name__,
            description=work.__doc__,
            response_class=Response,
            openapi_extra=body_of(body),
            responses=answer | answers(*_BODY),
        )
    _add_model(router, service)
    _add_state(router, service)
    _add_page(router)
    return router


def _answering(service: Service, path: str, work: Work) -> Callable[..., Awaitable[Response]]:
    name, aside = path.replace("/{id}", ""), path.endswith("/control")

    async def endpoint() -> Response:
        return Answering(service, name, work, aside=aside)

    async def about_one(id: str) -> Response:
        return await endpoint()

    return about_one if "{id}" in path else endpoint


def _add_model(router: APIRouter, service: Service) -> None:
    created = int(time.time())

    fleet = service.fleet

    def described(entry: Entry, name: str) -> dict[str, Any]:
        member = fleet.members[entry.name]
        parent = {} if entry.base is None else {"parent": entry.base}
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "mlxgen",
            **parent,
            "max_model_len": (member.base or member).max_context,
            "status": member.told(),
        }

    @router.get("/v1/models", responses=_ANSWER | answers(*_BUSY))
    async def models() -> Response:
        """A list of the models, by each of their names, and whether they are loaded."""
        service.check_open()
        data = [described(each, name) for each in fleet.catalogue.entries for name in each.listed]
        return JsonResponse({"object": "list", "data": data})

    @router.get("/v1/models/{name:path}", responses=_ANSWER | answers(404, *_BUSY))
    async def model(name: str) -> Response:
        """A model, by one of its names."""
        service.check_open()
        return JsonResponse(described(fleet.catalogue.named(name), name))

    @router.get("/v1/programs", responses=_ANSWER | answers(*_BUSY))
    async def programs() -> Response:
        """The operator's programs, controllers and hooks that requests may name."""
        service.check_open()
        return JsonResponse(service.registry.listed())

    @router.get("/props", responses=_ANSWER | answers(404, *_BUSY))
    async def props(model: str | None = None) -> Response:
        """The model, and the defaults for what a request leaves out."""
        source = fleet.catalogue.meant(model).source
        async with service.using(model) as serving:
            slots = service.settings.max_batch
            return JsonResponse(props_of(serving.model, slots=slots, path=source))


def _add_state(router: APIRouter, service: Service) -> None:
    def health(status: int) -> Response:
        stats = service.fleet.stats()
        counts = {
            name: getattr(stats, name, 0) or 0 for name in ("running", "prefilling", "queued")
        }
        stuck = service.stuck
        ready = service.is_ready and stuck is None
        state = {"status": service.status, "alive": service.is_alive, "ready": ready}
        reason = {} if stuck is None else {"reason": stuck}
        return JsonResponse(state | reason | counts, status_code=status)

    @router.get("/health", responses=_HEALTH)
    @router.get("/health/ready", responses=_HEALTH)
    async def ready() -> Response:
        """Readiness: 200, or 503 while the server loads, is stuck, is stopping or has failed."""
        return health(200 if service.is_ready and service.stuck is None else 503)

    @router.get("/slots", responses=_good(_LIST) | answers(401, 403, 503))
    async def slots(fail_on_no_slot: str | None = None, model: str | None = None) -> Response:
        """The sequences of a model that may run at a time, and which of them are running. With
        fail_on_no_slot=1 a 503 if all of them are."""
        serving = service.fleet.members[service.fleet.catalogue.meant(model).name].serving
        stats = None if serving is None else serving.engine.stats
        busy = sum(getattr(stats, name, 0) or 0 for name in ("running", "prefilling"))
        most = service.settings.max_batch
        if fail_on_no_slot and busy >= most:
            raise RequestError("no slot is free; try again later", status=503, code="no_slot")
        known = None if serving is None else serving.model
        return JsonResponse(slots_of(known, busy=busy, slots=most))

    @router.get("/health/live", responses=_HEALTH)
    async def live() -> Response:
        """Liveness: 200 unless the engine has failed or has stopped taking steps."""
        return health(200 if service.is_alive else 503)

    figures = _good({"text/plain": _TEXT}, "Metrics") | answers(401, 403)

    @router.get("/metrics", response_class=Response, responses=figures)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _add_page(router: APIRouter) -> None:
    page = read_page()

    @router.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return unless_kept(page[INDEX], request.headers.get("if-none-match"))

    @router.get("/page/{name:path}", include_in_schema=False)
    async def beside(name: str, request: Request) -> Response:
        if name not in page:
            raise RequestError("there is no such file of the page", status=404, code="not_found")
        return unless_kept(page[name], request.headers.get("if-none-match"))
