"""The endpoints: which path does which work.

Owns paths, methods and what ``/docs`` says about them. Must never know how the work is done.
Invariant: every unsuccessful answer has the form of OpenAI's errors.
"""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from .. import __version__
from .engine_thread import State
from .errors import RequestError
from .exchange import Exchange, Work
from .generation import Generation
from .metrics import CONTENT_TYPE
from .openai.chat import parse_chat
from .openai.completion import parse_completion
from .openai.llama import parse_llama
from .openai.props import props_of, tokenizer_of
from .openai.schemas import ChatRequest, CompletionRequest
from .openapi import answers, body_of
from .page import INDEX, PageFile, read_page
from .responses import JsonResponse
from .service import Service
from .token_work import DetokenizeRequest, TokenizeRequest, TokenWork, detokenize, tokenize

_BUSY = (401, 403, 503)
_BODY = (400, 404, 408, 413, 415, 429, 500, 504, *_BUSY)
_JSON = {"application/json": {"schema": {"type": "object"}}}
_ANSWER: dict[int | str, dict[str, Any]] = {200: {"description": "The answer", "content": _JSON}}
_LIST: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer",
        "content": {"application/json": {"schema": {"type": "array", "items": {"type": "object"}}}},
    }
}
_STREAMED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer, or its events with stream: true",
        "content": {**_JSON, "text/event-stream": {"schema": {"type": "string"}}},
    }
}

_FIGURES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}
}


class Answering(Response):
    """An answer that is written by its exchange."""

    def __init__(self, service: Service, endpoint: str, work: Work) -> None:
        super().__init__()
        self._service = service
        self._endpoint = endpoint
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(self._service, self._endpoint, scope, receive, send)
        await exchange.run(self._work)


def make_router(service: Service) -> APIRouter:
    """All endpoints."""
    router = APIRouter()
    _add_generation(router, service)
    _add_tokens(router, service)
    _add_models(router, service)
    _add_state(router, service)
    _add_page(router)
    return router


def _add_generation(router: APIRouter, service: Service) -> None:
    chat = Generation(parse_chat, "chatcmpl")
    completion = Generation(parse_completion, "cmpl")
    llama = Generation(parse_llama, "cmpl")

    @router.post(
        "/v1/chat/completions",
        response_class=Response,
        openapi_extra=body_of(ChatRequest),
        responses=_STREAMED | answers(*_BODY),
    )
    async def chat_completions(request: Request) -> Response:
        """Answer a conversation, rendered with the model's chat template."""
        return Answering(service, "/v1/chat/completions", chat)

    @router.post(
        "/v1/completions",
        response_class=Response,
        openapi_extra=body_of(CompletionRequest),
        responses=_STREAMED | answers(*_BODY),
    )
    async def completions(request: Request) -> Response:
        """Continue raw text or tokens."""
        return Answering(service, "/v1/completions", completion)

    @router.post(
        "/completion",
        response_class=Response,
        openapi_extra=body_of(CompletionRequest),
        responses=_STREAMED | answers(*_BODY),
    )
    async def llama_completion(request: Request) -> Response:
        """The same in llama.cpp's form and names: n_predict (no limit), n_probs and others."""
        return Answering(service, "/completion", llama)


def _add_tokens(router: APIRouter, service: Service) -> None:
    to_tokens, to_text = TokenWork(tokenize), TokenWork(detokenize)

    @router.post(
        "/tokenize",
        response_class=Response,
        openapi_extra=body_of(TokenizeRequest),
        responses=_ANSWER | answers(*_BODY),
    )
    async def tokenize_text(request: Request) -> Response:
        """The tokens of a text or a chat."""
        return Answering(service, "/tokenize", to_tokens)

    @router.post(
        "/detokenize",
        response_class=Response,
        openapi_extra=body_of(DetokenizeRequest),
        responses=_ANSWER | answers(*_BODY),
    )
    async def detokenize_tokens(request: Request) -> Response:
        """The text of tokens."""
        return Answering(service, "/detokenize", to_text)

    @router.get("/tokenizer_info", responses=_ANSWER | answers(*_BUSY))
    async def tokenizer_info() -> Response:
        """The begin and end tokens, and the chat template."""
        return JsonResponse(tokenizer_of(service.model))


def _add_models(router: APIRouter, service: Service) -> None:
    created = int(time.time())

    def described() -> dict[str, Any]:
        model = service.model
        return {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "mlxgen",
            "max_model_len": model.max_context,
        }

    @router.get("/v1/models", responses=_ANSWER | answers(*_BUSY))
    async def models() -> Response:
        """A list of the one model that is served."""
        return JsonResponse({"object": "list", "data": [described()]})

    @router.get("/v1/models/{name:path}", responses=_ANSWER | answers(404, *_BUSY))
    async def model(name: str) -> Response:
        """The model that is served, by name."""
        service.model.check_name(name)
        return JsonResponse(described())

    @router.get("/props", responses=_ANSWER | answers(*_BUSY))
    async def props() -> Response:
        """The model, and the defaults for what a request leaves out."""
        settings, known = service.settings, service.model
        path = known.name if settings.model is None else settings.model
        return JsonResponse(props_of(known, slots=settings.max_batch, path=path))


def _add_state(router: APIRouter, service: Service) -> None:
    def is_alive() -> bool:
        failed = service.state in (State.FAILED, State.REFUSED)
        return not failed and not service.pulse.is_missing

    def health(status: int) -> Response:
        stats = service.engine.stats
        rows = {name: getattr(stats, name, 0) or 0 for name in ("running", "prefilling", "queued")}
        stuck = service.stuck
        ready = service.is_ready and stuck is None
        state = {"status": service.status, "alive": is_alive(), "ready": ready}
        reason = {} if stuck is None else {"reason": stuck}
        return JsonResponse(state | reason | rows, status_code=status)

    unready: dict[int | str, dict[str, Any]] = {503: {"description": "Not ready", "content": _JSON}}

    @router.get("/health", responses=_ANSWER | unready | answers(403))
    @router.get("/health/ready", responses=_ANSWER | unready | answers(403))
    async def ready() -> Response:
        """Readiness: 200, or 503 while the server loads, is stuck, is stopping or has failed."""
        return health(200 if service.is_ready and service.stuck is None else 503)

    @router.get("/ping", responses=_ANSWER | unready | answers(403))
    async def ping() -> Response:
        """The same as /health, for clients that ask here."""
        return health(200 if service.is_ready and service.stuck is None else 503)

    @router.get("/slots", responses=_LIST | answers(401, 403))
    async def slots() -> Response:
        """The rows that may run at a time, and which of them are running."""
        stats = service.engine.stats
        busy = sum(getattr(stats, name, 0) or 0 for name in ("running", "prefilling"))
        most = service.settings.max_batch
        rows = [{"id": index, "is_processing": index < busy} for index in range(most)]
        return JsonResponse(rows)

    @router.get("/version", responses=_ANSWER | answers(401, 403))
    async def version() -> Response:
        """The server's version."""
        return JsonResponse({"version": __version__})

    @router.get("/health/live", responses=_ANSWER | unready | answers(403))
    async def live() -> Response:
        """Liveness: 200 unless the engine has failed or has stopped taking steps."""
        return health(200 if is_alive() else 503)

    @router.get(
        "/metrics",
        response_class=Response,
        responses=_FIGURES | answers(401, 403),
    )
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _add_page(router: APIRouter) -> None:
    page = read_page()

    def served(file: PageFile) -> Response:
        return Response(file.content, media_type=file.media_type, headers=dict(file.headers))

    @router.get("/", include_in_schema=False)
    async def index() -> Response:
        if INDEX in page:
            return served(page[INDEX])
        return JsonResponse(
            {
                "server": "mlxgen",
                "api": "/v1",
                "docs": "/docs",
                "health": "/health",
                "metrics": "/metrics",
            }
        )

    @router.get("/page/{name}", include_in_schema=False)
    async def beside(name: str) -> Response:
        if name not in page:
            raise RequestError("there is no such file of the page", status=404, code="not_found")
        return served(page[name])
