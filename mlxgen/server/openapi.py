"""The OpenAPI description of the server.

Owns how bodies that FastAPI does not parse are described. Must never know what an endpoint does.
Invariant: the schema of a body is that of the model which validates it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from .fields import Lenient, TextRequest

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


def body_of(model: type[BaseModel]) -> dict[str, Any]:
    """``openapi_extra`` of an endpoint whose body this model validates."""
    schema = {"$ref": _REF.format(model=model.__name__)}
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


def describe(
    app: FastAPI,
    models: Sequence[type[BaseModel]],
    *,
    with_key: bool,
    defaults: Mapping[str, Any],
    strict: bool,
) -> dict[str, Any]:
    """The whole description. ``models`` are those of bodies; ``with_key``: an API key is needed;
    ``defaults``: the values of fields that a request for text leaves out; ``strict``: unknown
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
            schema.pop("additionalProperties", None)  # they are ignored
        has_defaults = defaults if issubclass(model, TextRequest) else {}
        for name in schema["properties"].keys() & has_defaults.keys():
            schema["properties"][name]["default"] = defaults[name]
    for operations in whole["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # FastAPI adds it, and nothing here gives it
            operation["responses"]["default"] = _FAILURE
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    schemas["Error"] = _ERROR
    if with_key:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        whole["security"] = [{"key": []}]
    return whole
