"""The ASGI application: routes, errors, documentation, and the gate around all of it.

Owns how these are put together. Must never know a process or a socket. Invariant: whatever a
request raises is answered, unless its answer has begun.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from .. import __version__
from .errors import RequestError
from .gate import Gate
from .llama import in_force
from .logs import log_failure
from .openapi import answers, describe
from .routes import BODIES, make_router
from .service import Service
from .wire import JsonResponse, error_response

_ABOUT = (
    "An OpenAI-compatible server for a language model that runs on this machine. A field that "
    "is unknown, unsupported or out of range gets a 400 that names it; null means the default. "
    "The sampling defaults are shown with the fields and by /props."
)


def make_app(service: Service) -> ASGIApp:
    """The application of a service."""
    app = FastAPI(
        title="mlxgen",
        version=__version__,
        description=_ABOUT,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.include_router(make_router(service))
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(Exception, _unexpected)
    _add_docs(app, service)
    settings = service.settings
    return Gate(
        app,
        host=settings.host,
        api_keys=settings.api_keys,
        origins=settings.cors_origins,
        allow_hosts=settings.allow_hosts,
        root=settings.root_path,
    )


def _add_docs(app: FastAPI, service: Service) -> None:
    @cache
    def described(with_model: bool) -> dict[str, Any]:
        known = service.loaded if with_model else None
        defaults = {} if known is None else in_force(known)
        settings = service.settings
        key, strict = bool(settings.api_keys), settings.strict_fields
        return describe(app, BODIES, with_key=key, defaults=defaults, strict=strict)

    @app.get("/openapi.json", responses=answers(401, 403))
    async def openapi() -> Response:
        """The OpenAPI description."""
        return JsonResponse(described(service.loaded is not None))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = ascii(request.url.path[:100])
    reasons = {
        404: f"there is nothing at {path}; GET /openapi.json lists the endpoints",
        405: f"{path} does not take {request.method}; GET /openapi.json lists the endpoints",
    }
    wrong = RequestError(
        reasons.get(error.status_code, str(error.detail)),
        status=error.status_code,
        code={404: "not_found", 405: "method_not_allowed"}.get(error.status_code),
    )
    allowed = (error.headers or {}).get("Allow")
    if allowed is None:
        return error_response(wrong, path=request.url.path)
    headers = [(b"allow", b"GET, HEAD" if allowed == "GET" else allowed.encode())]
    return error_response(wrong, headers, request.url.path)


async def _request_error(request: Request, error: Exception) -> Response:
    return error_response(error)


async def _unexpected(request: Request, error: Exception) -> Response:
    log_failure("a request failed outside its handler", error)
    return error_response(error)
