"""The OpenAPI description of the server.

Owns how bodies that FastAPI does not parse are described. Must never know what an endpoint does.
Invariant: the schema of a body is that of the model which validates it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .control import ControlRequest, ReasoningControl
from .fields import ModelRequest
from .llama import InfillRequest, LlamaRequest
from .messages import CountRequest, MessagesRequest
from .openai import ChatRequest, CompletionRequest
from .responses import ResponsesRequest
from .token_work import DetokenizeRequest, TokenizeRequest

_REF = "#/components/schemas/{model}"
_LLAMA = (LlamaRequest, InfillRequest)
_GENERATING = (ChatRequest, CompletionRequest, *_LLAMA, MessagesRequest, ResponsesRequest)
_TOKENS = (CountRequest, TokenizeRequest, DetokenizeRequest)
_BODIES = (*_GENERATING, *_TOKENS, ModelRequest, ControlRequest, ReasoningControl)
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
REASONS = {
    400: "The body is invalid; the error names the field",
    401: "The API key is missing or wrong",
    403: "The page's origin, or the name used for this host, is not allowed",
    404: "The model, or the answer that is named, does not exist",
    408: "The body did not arrive in time",
    409: "The model is being loaded, or the answer cannot be steered like this now",
    413: "The body, or the memory that it needs, is too large",
    415: "The body is not JSON",
    429: "Too many requests; try again after as many seconds as Retry-After says",
    500: "The server failed on this request",
    503: "The server is loading or stopping",
    504: "The request took too long",
}


def answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors that an endpoint may return."""
    error = {"application/json": {"schema": {"$ref": _REF.format(model="Error")}}}
    return {
        status: {"description": REASONS[status], "content": error} for status in sorted(statuses)
    }


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of an endpoint whose body this model validates."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def describe(
    app: FastAPI, *, with_key: bool, defaults: Mapping[str, Any], strict: bool
) -> dict[str, Any]:
    """The whole description; ``with_key``: an API key is needed; ``defaults``: the values of
    fields that a request leaves out; ``strict``: unknown fields are refused."""
    whole = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes
    )
    _, bodies = models_json_schema([(m, "validation") for m in _BODIES], ref_template=_REF)
    components: dict[str, Any] = whole.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas |= _without_discriminators(bodies.get("$defs", {}))
    _drop_validation_errors(whole["paths"], schemas)
    for model in () if strict else (*_GENERATING, CountRequest):
        schemas[model.__name__].pop("additionalProperties", None)  # they are ignored
    for model in _GENERATING:
        properties = schemas[model.__name__]["properties"]
        for name in properties.keys() & defaults.keys():
            properties[name]["default"] = defaults[name]
    schemas["Error"] = _ERROR
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole


def _drop_validation_errors(paths: Mapping[str, Any], schemas: dict[str, Any]) -> None:
    """Leave out the answer that FastAPI adds where a path has parameters: none here gives it."""
    for methods in paths.values():
        for operation in methods.values():
            operation["responses"].pop("422", None)
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)


def _without_discriminators(schema: Any) -> Any:
    """The schema without what OpenAPI adds to ``oneOf``.

    The alternatives exclude each other anyway, and readers of the description disagree about
    two names for one alternative, such as the roles ``system`` and ``developer``.
    """
    if isinstance(schema, dict):
        named = schema.items()
        return {k: _without_discriminators(v) for k, v in named if k != "discriminator"}
    return [_without_discriminators(v) for v in schema] if isinstance(schema, list) else schema
