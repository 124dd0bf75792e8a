"""Steering an answer while it is generated: ``/v1/requests/{id}/control``, and llama.cpp's form.

Owns the actions that a client may ask for, and their errors. Must never know how text is taken
back: the engine carries out an order whole, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..engine import Request, change_options, end, end_thinking, keep_only, put
from ..errors import FilterError, MlxgenError, RewindError, StateError
from .answers import Answer, ended
from .ask import Ask
from .errors import RequestError, as_request_error
from .exchange import Exchange
from .fields import Body, Count, ModelName, SamplingFields, about, named, options_of
from .generation import FORMS, FormFields, form_of

MOST = 4096  # tokens or characters that are put at a time

Order: TypeAlias = Callable[[Request], object]


class ControlRequest(SamplingFields, FormFields):
    """What to do with a running answer. With ``options``: any fields for sampling, stops and what
    the text matches, which apply from here on."""

    action: Literal["reasoning_end", "rewind", "put", "options", "stop"]
    index: Count | None = about("which choice of the answer (default: the only one)")
    tokens: Count | Annotated[list[Count], Field(min_length=1, max_length=MOST)] | None = about(
        "for rewind: how many of the newest tokens to take back; for put: token ids to put there"
    )
    to: Count | None = about(
        "for rewind, put and options: keep this many tokens of the answer, and take back the rest"
    )
    text: Annotated[str, Field(min_length=1, max_length=MOST)] | None = about(
        "for put: the text to put there, which is none of the model's choice"
    )


class ReasoningControl(Body):
    """The same, for the only action of llama.cpp's server."""

    id: Annotated[str, Field(max_length=256)]
    action: Literal["reasoning_end"]
    model: ModelName | None = named()


async def control(exchange: Exchange) -> Any:
    """Steer a running answer: end its thinking or its text, take tokens back, put others in their
    place, or change the options from here on."""
    asked = (await exchange.read(ControlRequest)).request
    _check_fields(asked)
    answer = exchange.service.answers.find(exchange.owner, exchange.scope["path_params"]["id"])
    length = await _ordered(exchange, answer, asked)
    return {"object": "control", "id": answer.id, "index": asked.index or 0, "length": length}


async def reasoning_control(exchange: Exchange) -> Any:
    """End the thinking of a running chat, as with llama.cpp's server."""
    given = (await exchange.read(ReasoningControl)).request
    try:
        answer = exchange.service.answers.find(exchange.owner, given.id)
        await _ordered(exchange, answer, ControlRequest(action=given.action))
    except RequestError as error:
        if error.status not in (404, 409):
            raise
        return {"success": False, "message": error.message}
    return {"success": True}


# ---- what is asked for ---------------------------------------------------------------------------

_CHANGES = frozenset(SamplingFields.model_fields) | frozenset(FormFields.model_fields)
_TAKES: Mapping[str, frozenset[str]] = {
    "reasoning_end": frozenset(),
    "stop": frozenset(),
    "rewind": frozenset(("tokens", "to")),
    "put": frozenset(("text", "tokens", "to")),
    "options": _CHANGES | {"to"},
}


def _given(asked: ControlRequest) -> list[str]:
    """The fields that are given and not null."""
    return [name for name in asked.model_fields_set if getattr(asked, name) is not None]


def _check_fields(asked: ControlRequest) -> None:
    """Raise ``RequestError`` for fields that do not belong together."""
    action, given = asked.action, set(_given(asked)) - {"action", "index"}
    for name in sorted(given - _TAKES[action]):
        raise RequestError.at(name, f"is not for the action {action}; leave it out")
    if action == "options" and not given & _CHANGES:
        raise RequestError.at("action", "no option is given; send temperature, stop or another one")
    one_of = {"rewind": ("tokens", "to"), "put": ("text", "tokens")}.get(action)
    if one_of is not None and len(given.intersection(one_of)) != 1:
        raise RequestError.at(one_of[0], f"expected either {one_of[0]} or {one_of[1]}; send one")
    if asked.tokens is not None and isinstance(asked.tokens, list) is not (action == "put"):
        wanted = "a list of token ids" if action == "put" else "how many to take back"
        raise RequestError.at("tokens", f"expected {wanted} for the action {action}")


# ---- what is done --------------------------------------------------------------------------------


async def _ordered(exchange: Exchange, answer: Answer, asked: ControlRequest) -> int | None:
    """Carry out the action; return the number of tokens that the text then has."""
    ask, place = answer.ask, _place(answer.ask, asked.index)
    changes = _changes(ask, asked) if asked.action == "options" else {}
    names = {"filters": next((name for name in FORMS if name in _given(asked)), "text")}
    try:
        if changes.get("filters"):
            run = exchange.service.workers.run
            await run(answer.serving.try_out, changes["filters"][0])
        order = _order(ask, asked, changes)
        return await answer.serving.engine.order(answer.box, place, order)
    except (RewindError, StateError) as error:
        if answer.box.finished:
            raise ended() from error
        rewinds = isinstance(error, RewindError)
        param = ("tokens" if asked.to is None else "to") if rewinds else "action"
        code = "cannot_rewind" if rewinds else "not_now"
        raise RequestError(str(error), status=409, param=param, code=code) from error
    except FilterError as error:
        if asked.action != "put":
            raise as_request_error(error, names) from error
        field = "text" if asked.tokens is None else "tokens"
        raise RequestError.at(field, f"cannot stand here: {error}") from error
    except MlxgenError as error:
        raise as_request_error(error, names) from error


def _place(ask: Ask, index: int | None) -> int:
    """The sequence of a choice; raises ``RequestError``."""
    if ask.steered is not None:
        reason = "is steered by a program of the server's operator, not by clients"
        raise RequestError(f"the answer {reason}", status=409, param="id", code="has_program")
    count = len(ask.questions) * ask.answers
    if index is None and count > 1:
        raise RequestError.at("index", f"is required, as the answer has {count} choices")
    if index is not None and index >= count:
        raise RequestError.at("index", f"expected an index from 0 to {count - 1}, got {index}")
    return index or 0


def _order(ask: Ask, asked: ControlRequest, changes: Mapping[str, Any]) -> Order:
    """The action, as an order for the engine's thread."""
    if asked.action == "reasoning_end":
        return end_thinking
    if asked.action == "stop":
        return end
    tokens, run = asked.tokens, list[int]()
    if asked.text is not None:
        run = ask.model.vocabulary.continue_with(asked.text.encode())
    elif isinstance(tokens, list):
        run, size = tokens, ask.model.vocab_size
        for place, token in enumerate(run):
            if token >= size:
                reason = f"expected token ids from 0 to {size - 1}, got {token}"
                raise RequestError.at(f"tokens[{place}]", reason)
    back = tokens if isinstance(tokens, int) else None

    def order(request: Request) -> None:
        if back is not None or asked.to is not None:
            keep_only(request, back, asked.to)
        if changes:
            change_options(request, changes)
        if run:
            put(request, run)

    return order


def _changes(ask: Ask, asked: ControlRequest) -> dict[str, Any]:
    """The options to change; the stops that the prompt's format needs stay."""
    changes, given = options_of(asked), _given(asked)
    if "stop" in given:
        stops = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        changes["stop"] = [*stops, *ask.own_stops]
    if "stop_token_ids" in given:
        changes["stop_tokens"] = [*(asked.stop_token_ids or ()), *ask.own_stop_tokens]
    if any(name in given for name in FORMS):
        form = form_of(asked, ask.model.registry)
        changes["filters"] = [] if form is None else [form.spec]
    return changes
