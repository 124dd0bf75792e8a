"""Chat requests: from the body to a ``Call``.

Invariant: every field of a request that was accepted has had its effect, or has none on the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...chat.template.format import Chat
from ...chat.template.sandbox import RenderLimits
from ...chat.turn import Turn, plan_turn, prompt_of
from ...engine import Prompt
from ...errors import MlxgenError
from ...images import plain
from ..asked import Question
from ..call import Call
from ..errors import RequestError, as_request_error
from ..history import chat_history
from ..served_model import ServedModel
from .chat_choice import CHAT
from .constraints import form_of
from .messages import CHAT_FIELDS, AssistantMessage, rendered
from .options import call_of_request, keep_of, limit_of
from .reading import read
from .schemas import ChatRequest
from .tool_choice import tool_use_of


def parse_chat(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = read(body, ChatRequest, served=model, mend=chat_history)
    request = known.request
    model = model.called(request.model)
    turn = turn_of(request, model)
    try:
        plan = plan_turn(turn, model.dialect, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, CHAT_FIELDS) from error
    prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
    return call_of_request(
        request,
        model,
        [Question(at="messages", prompt=prompt, reading=plan.reading)],
        {
            "max_tokens": _max_tokens(request),
            "top_logprobs": _top_logprobs(request),
            "prompt_logprobs": request.prompt_logprobs,
            "thinking_budget": plan.thinking_budget,
        },
        prompt="messages",
        filters=plan.field,
        make_reply=CHAT,
        ignored=known.ignored(plan.ignored),
        spec=plan.spec,
        stop=plan.stop,
        held=plan.held,
        reasoning=request.include_reasoning is not False,
    )


def turn_of(request: ChatRequest, model: ServedModel) -> Turn:
    """What a request means."""
    _check_continuation(request)
    return Turn(
        chat=Chat(
            rendered(request.messages),
            template=request.chat_template_kwargs or {},
            continue_final_message=_goes_on(request),
        ),
        tools=tool_use_of(request),
        form=form_of(request),
        effort=request.reasoning_effort,
        thinking_budget=request.thinking_budget,
        usual_budget=model.thinking_budget,
        keep=keep_of(request, model),
        raw_thoughts=request.reasoning_format == "none",
    )


def apply_template(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """The text of the prompt that a chat would have; ``add_generation_prompt: false`` begins no
    answer."""
    begins = body.get("add_generation_prompt") is not False
    given = body if begins else {**body, "add_generation_prompt": None}
    request = read(given, ChatRequest, served=model, mend=chat_history).request
    model = model.called(request.model)
    turn = turn_of(request, model)
    turn = replace(turn, chat=replace(turn.chat, add_generation_prompt=begins))
    try:
        tokens = prompt_of(turn, model.dialect, RenderLimits()).tokens
    except MlxgenError as error:
        raise as_request_error(error, CHAT_FIELDS) from error
    return {"prompt": model.vocabulary.decode(plain(tokens))}


def _goes_on(request: ChatRequest) -> bool:
    """Whether the answer is the rest of the last message, in either way to say so."""
    last = request.messages[-1]
    begun = isinstance(last, AssistantMessage) and bool(last.prefix)
    return begun if request.continue_final_message is None else request.continue_final_message


def _check_continuation(request: ChatRequest) -> None:
    """Raise ``RequestError`` unless a new message is asked for, or the rest of one."""
    going_on = _goes_on(request)
    if request.add_generation_prompt is going_on:
        value, other = ("true", "leave out") if going_on else ("false", "send")
        raise RequestError.at(
            "add_generation_prompt",
            f"{value} means that the answer is {'a new message' if going_on else 'the rest of one'}"
            f"; {other} continue_final_message: true",
        )
    last = request.messages[-1]
    if going_on and (not isinstance(last, AssistantMessage) or last.tool_calls):
        raise RequestError.at(
            "continue_final_message",
            "expected a last message with the role assistant and some text, to be continued",
        )


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError.at(
            "max_tokens", f"{old} contradicts max_completion_tokens={new}; send one of them"
        )
    return limit_of(new if new is not None else old)


def _top_logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs:
        raise RequestError.at("top_logprobs", "needs logprobs: true")
    return None
