"""Errors as OpenAI's clients expect them.

Owns ``RequestError`` and the JSON body of every error. Must never know a request or a
connection. Invariant: a body names the field at fault if it is known, and says no more about an
unexpected failure than that there was one.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ..chat.dialect import UnsupportedError
from ..errors import (
    DeadEndError,
    FilterError,
    HookError,
    MachineError,
    MlxgenError,
    ModelError,
    OptionError,
    PromptError,
    QueueFullError,
)

INVALID = "invalid_request_error"
_TYPES = {
    400: INVALID,
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: INVALID,
    422: INVALID,
    429: "rate_limit_error",
    503: "overloaded_error",
}


class RequestError(MlxgenError):
    """A request that cannot be carried out as it is.

    ``param`` is the field at fault as the client wrote it (``messages[0].content``), or ``None``;
    ``code`` is a word for programs; ``type`` is OpenAI's class of error, which by default follows
    from ``status``.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        type: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.param = param
        self.code = code
        self.type = type or type_of(status)

    @classmethod
    def at(cls, param: str, reason: str, code: str = "invalid_value") -> RequestError:
        """The error for a field that cannot be used; the message is its name and the ``reason``."""
        return cls(f"{param}: {reason}", param=param, code=code)

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        return _body(self.message, self.type, self.param, self.code)


def type_of(status: int) -> str:
    """OpenAI's class of error for an HTTP status."""
    return _TYPES.get(status, "server_error" if status >= 500 else INVALID)


def error_body(
    error: BaseException, params: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the JSON body for any error.

    The message of an ``MlxgenError`` is passed on; any other error gets a fixed message. ``params``
    maps the engine's ``prompt`` and ``filters`` to the request's fields, and ``dead_end`` to the
    names of all of its fields that exclude tokens.
    """
    if isinstance(error, RequestError):
        return error.status, error.body()
    if not isinstance(error, MlxgenError):
        return 500, _body("the server failed on this request; its log says why", type_of(500))
    known = as_request_error(error, params)
    return known.status, known.body()


def as_messages_error(status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    """A body as Anthropic's clients expect it: they read a subset, and two types differ."""
    error = body["error"]
    kind = "request_too_large" if status == 413 else error["type"]
    kind = "api_error" if kind == "server_error" else kind
    code = str(error.get("code"))
    details = {"details": {"error_code": code}} if code.endswith("_unsupported_request") else {}
    return {"type": "error", "error": {**error, "type": kind, **details}}


def as_request_error(
    error: MlxgenError, params: Mapping[str, str] = MappingProxyType({})
) -> RequestError:
    """The same error, with the field named as requests name it."""
    if isinstance(error, RequestError):
        return error
    message, param, status = str(error), None, error.status
    if isinstance(error, DeadEndError):
        if "dead_end" in params:  # only the request's own fields can exclude everything
            fields = params["dead_end"]
            param = fields.split(", ")[0]
            status = 400
            message = f"{fields}: no text was found that satisfies this: {message}"
    elif (
        isinstance(error, ModelError) and error.__cause__ is not None
    ):  # whose text may be anything
        message = "the model failed on this request; the server's log says why"
    elif isinstance(error, OptionError):
        param = params.get(error.field) or _FIELDS.get(error.field, error.field)
        message = f"{param}: {message.removeprefix(f'{error.field}: ')}"
        param = param if error.index is None else f"{param}[{error.index}]"
    elif isinstance(error, PromptError):
        param = params.get("prompt")
    elif isinstance(error, FilterError):
        param = error.field or params.get("filters")
    code = getattr(error, "code", None)
    code = code or next((code for kind, code in _CODES if isinstance(error, kind)), None)
    return RequestError(message, status=status, param=param, code=code)


_FIELDS = {
    "stop_tokens": "stop_token_ids",
    "prefix": "prefix_tokens",
}
"""Names of the engine's options in requests, where they differ."""

_CODES: tuple[tuple[type[MlxgenError], str], ...] = (
    (UnsupportedError, "unsupported_value"),
    (OptionError, "invalid_value"),
    (PromptError, "invalid_prompt"),
    (DeadEndError, "dead_end"),
    (FilterError, "invalid_grammar"),
    (QueueFullError, "rate_limit_exceeded"),
    (HookError, "hook_failed"),
    (MachineError, "machine_lost"),
)


def _body(
    message: str, type: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": type, "param": param, "code": code}}
