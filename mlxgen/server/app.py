"""The ASGI application: the paths and their work, the OpenAPI description, and the gate around it.

Must never know how the work is done, nor a process or a socket. Invariant: whatever a request
raises is answered as an error in its API's form, unless its answer has begun.
"""

from __future__ import annotations

import base64
import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

from fastapi import FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from .. import __version__
from .catalogue import Entry
from .control import ControlRequest, ReasoningControl, control, reasoning_control
from .errors import RequestError
from .exchange import Exchange, Work, generate
from .fields import Lenient, ModelRequest, TextRequest
from .fleet import Status
from .gate import Gate
from .llama import COMPLETION, INFILL, in_force, props_of, slots_of
from .logs import log_failure
from .messages import MESSAGES, CountRequest, count_tokens
from .metrics import CONTENT_TYPE
from .openai import CHATS, COMPLETIONS, ChatRequest
from .responses import RESPONSES
from .service import Service
from .token_work import (
    DetokenizeRequest,
    OfTokens,
    TokenizeRequest,
    apply_template,
    detokenize,
    on_tokens,
    tokenize,
)
from .wire import JsonResponse, error_response

_ABOUT = (
    "An OpenAI-compatible server for a language model that runs on this machine. A field that "
    "is unknown, unsupported or out of range gets a 400 that names it; null means the default. "
    "The sampling defaults are shown with the fields and by /props."
)
_OBJECT: dict[str, Any] = {"type": "object"}
_OBJECTS = {"type": "array", "items": _OBJECT}

Answers: TypeAlias = dict[int | str, dict[str, Any]]


def _good(
    schema: dict[str, Any], kind: str = "application/json", *, streams: bool = False
) -> Answers:
    events: dict[str, Any] = {"text/event-stream": {"schema": {}}} if streams else {}
    said = "The answer, or its events with stream: true" if streams else "The answer"
    return {200: {"description": said, "content": {kind: {"schema": schema}} | events}}


_ANSWER = _good(_OBJECT)
_HEALTH = {**_ANSWER, 503: {**_ANSWER[200], "description": "Not ready"}}


async def load_model(exchange: Exchange) -> Any:
    """Load a model, and answer when it is loaded; other models may be unloaded to make room."""
    await exchange.use((await _named(exchange)).name)
    return {"success": True}


async def unload_model(exchange: Exchange) -> Any:
    """Unload a model, as soon as no request uses it."""
    fleet = exchange.service.fleet
    member = fleet.members[(await _named(exchange)).name]
    if member.status is Status.LOADING:
        reason = f"{member.entry.name} is being loaded; try again when it is"
        raise RequestError(reason, status=409, code="model_loading")
    fleet.dismiss(member)
    return {"success": True}


async def _named(exchange: Exchange) -> Entry:
    """The model that a ``ModelRequest`` names; an unknown name is an error."""
    request = (await exchange.read(ModelRequest)).request
    return exchange.service.fleet.catalogue.named(request.model)


_OF_TOKENS: tuple[tuple[str, type[BaseModel], OfTokens], ...] = (
    ("/v1/messages/count_tokens", CountRequest, count_tokens),
    ("/tokenize", TokenizeRequest, tokenize),
    ("/apply-template", ChatRequest, apply_template),
    ("/detokenize", DetokenizeRequest, detokenize),
)
_STEERS: tuple[tuple[str, type[BaseModel], Work], ...] = (
    ("/v1/models/load", ModelRequest, load_model),
    ("/v1/models/unload", ModelRequest, unload_model),
    ("/v1/requests/{id}/control", ControlRequest, control),
    ("/v1/chat/completions/control", ReasoningControl, reasoning_control),
)


def make_app(service: Service) -> ASGIApp:
    """The application of a service."""
    settings = service.settings
    app = FastAPI(
        title="mlxgen",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    bodies: dict[type[BaseModel], None] = {}

    def post(
        path: str, body: type[BaseModel], work: Work, about: str | None, good: Answers = _ANSWER
    ) -> None:
        """Add the work for a body that is posted to a path."""
        bodies[body] = None
        app.add_api_route(
            path,
            _endpoint(service, path, work),
            methods=["POST"],
            name=path.removeprefix("/v1").replace("/{id}", "").strip("/").replace("/", "_"),
            description=about,
            response_class=Response,
            openapi_extra=_body_of(body),
            responses=good,
        )

    for api in (CHATS, COMPLETIONS, RESPONSES, MESSAGES, COMPLETION, INFILL):
        several = {"anyOf": [_OBJECT, _OBJECTS]}  # a list for several prompts
        good = _good(several if api is COMPLETION else _OBJECT, streams=True)
        post(api.path, api.body, partial(generate, api=api), api.about, good)
    for path, body, answer in _OF_TOKENS:
        post(path, body, on_tokens(body, answer), answer.__doc__)
    for path, body, work in _STEERS:
        post(path, body, work, work.__doc__)
    _add_model(app, service)
    _add_state(app, service)
    _add_files(app, service, tuple(bodies))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestError, _failed)
    app.add_exception_handler(Exception, _failed)
    return Gate(
        app,
        host=settings.host,
        api_keys=settings.api_keys,
        origins=settings.cors_origins,
        allow_hosts=settings.allow_hosts,
        root=settings.root_path,
    )


def _endpoint(service: Service, path: str, work: Work) -> Callable[..., Awaitable[Response]]:
    name, aside = path.replace("/{id}", ""), path.endswith("/control")

    async def endpoint(request: Request) -> Response:
        return Exchange(service, name, work, request, aside=aside)

    async def about_one(id: str, request: Request) -> Response:
        return await endpoint(request)

    return about_one if "{id}" in path else endpoint


# ---- what the server says of itself --------------------------------------------------------------


def _add_model(app: FastAPI, service: Service) -> None:
    created, fleet = int(time.time()), service.fleet

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

    @app.get("/v1/models", responses=_ANSWER)
    async def models() -> Response:
        """All models under each of their names, and whether they are loaded."""
        service.check_open()
        data = [described(each, name) for each in fleet.catalogue.entries for name in each.listed]
        return JsonResponse({"object": "list", "data": data})

    @app.get("/v1/models/{name:path}", responses=_ANSWER)
    async def model(name: str) -> Response:
        """The model of this name."""
        service.check_open()
        return JsonResponse(described(fleet.catalogue.named(name), name))

    @app.get("/v1/programs", responses=_ANSWER)
    async def programs() -> Response:
        """The operator's programs, controllers and hooks that requests may name."""
        service.check_open()
        return JsonResponse(service.registry.listed())

    @app.get("/props", responses=_ANSWER)
    async def props(request: Request, model: str | None = None) -> Response:
        """The model, and the defaults of what requests leave out."""

        async def work(exchange: Exchange) -> Any:
            serving, source = await exchange.use(model), fleet.catalogue.meant(model).source
            slots = service.settings.max_batch
            return props_of(serving.model, slots=slots, path=source)

        return Exchange(service, "/props", work, request)


def _add_state(app: FastAPI, service: Service) -> None:
    def health(*, good: bool) -> Response:
        stats, stuck = service.fleet.stats(), service.stuck
        state = {
            "status": service.status,
            "alive": service.is_alive,
            "ready": service.status == "ready" and stuck is None,
            **({} if stuck is None else {"reason": stuck}),
        }
        names = ("running", "prefilling", "queued")
        counts = {name: getattr(stats, name, 0) or 0 for name in names}
        return JsonResponse(state | counts, status_code=200 if good else 503)

    @app.get("/health", responses=_HEALTH)
    @app.get("/health/ready", responses=_HEALTH)
    async def ready() -> Response:
        """Readiness: 200, or 503 while the server is loading, stuck, stopping or has failed."""
        return health(good=service.status == "ready" and service.stuck is None)

    @app.get("/health/live", responses=_HEALTH)
    async def live() -> Response:
        """Liveness: 200 unless the engine has failed or has stopped taking steps."""
        return health(good=service.is_alive)

    @app.get("/slots", responses=_good(_OBJECTS))
    async def slots(fail_on_no_slot: str | None = None, model: str | None = None) -> Response:
        """The places of a model for sequences that run at a time, and which of them are taken. With
        fail_on_no_slot=1, the answer is a 503 if all of them are."""
        serving = service.fleet.members[service.fleet.catalogue.meant(model).name].serving
        stats = None if serving is None else serving.engine.stats
        busy = sum(getattr(stats, name, 0) or 0 for name in ("running", "prefilling"))
        most = service.settings.max_batch
        if fail_on_no_slot and busy >= most:
            raise RequestError("no slot is free; try again later", status=503, code="no_slot")
        known = None if serving is None else serving.model
        return JsonResponse(slots_of(known, busy=busy, slots=most))

    @app.get("/metrics", responses=_good({"type": "string"}, "text/plain"))
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics.page(), media_type=CONTENT_TYPE)


def _add_files(app: FastAPI, service: Service, bodies: Sequence[type[BaseModel]]) -> None:
    page, settings = _read_page(), service.settings

    @cache
    def described(with_model: bool) -> dict[str, Any]:
        known = service.loaded if with_model else None
        defaults = {} if known is None else in_force(known)
        key, strict = bool(settings.api_keys), settings.strict_fields
        return _described(app, bodies, with_key=key, defaults=defaults, strict=strict)

    @app.get("/openapi.json")
    async def openapi() -> Response:
        """The OpenAPI description."""
        return JsonResponse(described(service.loaded is not None))

    @app.get("/", include_in_schema=False)
    async def index(request: Request) -> Response:
        return _unless_kept(page[_INDEX], request)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def beside(name: str, request: Request) -> Response:
        if name not in page:
            raise RequestError("there is no such file of the page", status=404, code="not_found")
        return _unless_kept(page[name], request)


# ---- its description --------------------------------------------------------------------------

_REF = "#/components/schemas/{model}"
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "description": "what is wrong and what to do"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"], "description": "the field at fault"},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_FAILURE = {
    "description": "An error: its code says what is wrong, and its param the field at fault",
    "content": {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}},
}


def _body_of(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of an endpoint whose body is validated by this model."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def _described(
    app: FastAPI,
    models: Sequence[type[BaseModel]],
    *,
    with_key: bool,
    defaults: Mapping[str, Any],
    strict: bool,
) -> dict[str, Any]:
    """The whole description. ``models``: those of all bodies; ``with_key``: an API key is needed;
    ``defaults``: the values of fields that a request for text may leave out; ``strict``: unknown
    fields are refused."""
    whole = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, bodies = models_json_schema([(m, "validation") for m in models], ref_template=_REF)
    components: dict[str, Any] = whole.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas |= bodies["$defs"]
    for model in models:
        schema = schemas[model.__name__]
        if issubclass(model, Lenient) and not strict:
            schema.pop("additionalProperties", None)  # unknown fields are ignored
        has_defaults = defaults if issubclass(model, TextRequest) else {}
        for name in schema["properties"].keys() & has_defaults.keys():
            schema["properties"][name]["default"] = defaults[name]
    for operations in whole["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI adds it, but no endpoint returns it
            operation["responses"]["default"] = _FAILURE
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


# ---- the page for people -------------------------------------------------------------------------
# A browser runs only the scripts and styles of the files in the folder ``page``, loads nothing from
# other hosts, and never treats text as HTML. The import map of the page is allowed by its hash.

_INDEX = "index.html"
_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".css": "text/css",
    ".woff2": "font/woff2",
}
_IMPORT_MAP = re.compile(rb'<script type="importmap">(.*?)</script>', re.DOTALL)
_POLICY = (
    "default-src 'none'; script-src 'self'{}; style-src 'self'; img-src 'self' data:; "
    "font-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


def _read_page() -> dict[str, Response]:
    """The files of the page as they are served, by their paths below the folder ``page``."""
    page, folder = dict[str, Response](), Path(__file__).parent / "page"
    for file in folder.rglob("*"):
        kind = _TYPES.get(file.suffix)
        if kind is None or file.is_dir():
            continue
        content = file.read_bytes()
        maps = _IMPORT_MAP.findall(content) if kind == "text/html" else []
        hashes = [base64.b64encode(hashlib.sha256(each).digest()).decode() for each in maps]
        headers = {
            "content-security-policy": _POLICY.format(
                "".join(f" 'sha256-{each}'" for each in hashes)
            ),
            "x-content-type-options": "nosniff",
            "referrer-policy": "no-referrer",
            # A browser may keep a file, but asks each time whether it has changed.
            "cache-control": "no-cache",
            "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        }
        name = file.relative_to(folder).as_posix()
        page[name] = Response(content, headers=headers, media_type=kind)
    return page


def _unless_kept(file: Response, request: Request) -> Response:
    """The file, or a 304 to a browser whose ``If-None-Match`` names this version of it."""
    if file.headers["etag"] not in request.headers.get("if-none-match", ""):
        return file
    kept = {name: value for name, value in file.headers.items() if not name.startswith("content-")}
    policy = {"content-security-policy": file.headers["content-security-policy"]}
    return Response(status_code=304, headers=kept | policy)


# ---- errors --------------------------------------------------------------------------------------


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, status = ascii(request.url.path[:100]), error.status_code
    reason, code = {
        404: (f"there is nothing at {path}", "not_found"),
        405: (f"{path} does not take {request.method}", "method_not_allowed"),
    }.get(status, (str(error.detail), None))
    hint = "" if code is None else "; GET /openapi.json lists the endpoints"
    allowed = (error.headers or {}).get("Allow", "").encode()
    allowed = b"GET, HEAD" if allowed == b"GET" else allowed
    headers = [(b"allow", allowed)] if allowed else []
    wrong = RequestError(reason + hint, status=status, code=code)
    return error_response(wrong, headers, request.url.path)


async def _failed(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestError):
        log_failure("a request failed outside its handler", error)
    return error_response(error, path=request.url.path)
