"""Chat requests: from the body to a ``Call``.

Owns what chats have and completions have not: messages, templates, tools, thinking. Must
never know how any of these is done. Invariant: every field of a request that was accepted
has had its effect, or has none on the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from ...chat.format import Chat, Rendered
from ...text import heal_plan
from .call import Call, Job
from .chat_reply import ChatReply, ReplyPlan
from .choice_text import TextPlan
from .constraints import constraint_of
from .errors import RequestError
from .generation import (
    check_context,
    choices_of,
    fields_of,
    kept_of,
    limit_of,
    options_of,
)
from .messages import AssistantMessage, rendered
from .reading import read
from .rendered import rendered_for
from .schemas import ChatRequest
from .served_model import ServedModel
from .thinking import after_thinking, thinking_of
from .tool_plan import ToolPlan, plan_tools


def parse_chat(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Understand a body; raises ``RequestError`` naming the field that cannot be done."""
    request = read(body, ChatRequest)
    model.check_name(request.model)
    constraint = constraint_of(request)
    plan = plan_tools(request, model, constraint)
    chat = _rendered(request, model, plan)
    chat = replace(chat, ids=kept_of(chat.ids, request, model))
    check_context(len(chat.ids), model, "messages", prefix=request.prefix_tokens)
    thinking = thinking_of(chat.ids, model, _continued(request))
    spec = plan.spec
    if spec is not None:
        if model.marks.initial is not None:
            raise RequestError(
                f"{plan.field}: this model writes headers before its text, and cannot be held to "
                "a form; leave it out",
                param=plan.field,
                code="unsupported_value",
            )
        spec = after_thinking(spec, thinking, model, required=plan.required)
    params = fields_of(request, prompt="messages", filters=plan.field, spec=spec)
    options = options_of(
        request,
        model,
        max_tokens=_max_tokens(request),
        top_logprobs=_top_logprobs(request),
        spec=spec,
        stop=plan.stop,
        params=params,
    )
    choices = choices_of(options, request.n or 1)
    continues = chat.continue_final_message
    skip = heal_plan(model.vocabulary, chat.ids)[1] if options.heal else b""
    text = TextPlan(
        vocabulary=model.vocabulary,
        marks=model.marks,
        thinking=thinking,
        tools=plan.reader,
        trim=constraint is None or constraint.is_json,
        opens_text=not continues,
        skip=len(skip),
        prefix=options.prefix,
        reports=options.top_logprobs is not None,
    )
    reply = ReplyPlan(
        model=model.name,
        texts=[text] * len(choices),
        choices=len(choices),
        given=len(options.prefix),
        stream=bool(request.stream),
        include_usage=bool(request.stream_options and request.stream_options.include_usage),
        logprobs=options.top_logprobs is not None,
        ids=bool(request.return_token_ids),
        prompts=[chat.ids],
        prompt_logprobs=request.prompt_logprobs is not None,
        reasoning=request.include_reasoning is not False,
        timings=bool(request.timings_per_token),
        progress=bool(request.return_progress),
        params=params,
    )
    return Call(
        jobs=tuple(Job(chat, one) for one in choices),
        stream=reply.stream,
        watched=reply.timings or reply.progress,
        specs=() if spec is None else (spec,),
        params=params,
        make_reply=partial(ChatReply, reply),
    )


def _continued(request: ChatRequest) -> str | None:
    """The text that is to be gone on with; None where the answer is a new message."""
    going_on = bool(request.continue_final_message)
    if request.add_generation_prompt is going_on:
        value, other = ("true", "leave out") if going_on else ("false", "send")
        raise RequestError(
            f"add_generation_prompt: {value} means that the answer is "
            f"{'a new message' if going_on else 'the rest of one'}; {other} "
            "continue_final_message: true",
            param="add_generation_prompt",
            code="invalid_value",
        )
    if not going_on:
        return None
    last = request.messages[-1]
    if not isinstance(last, AssistantMessage) or last.tool_calls:
        raise RequestError(
            "continue_final_message: the last message is not the beginning of an answer; end "
            "with one that has the role assistant, and text",
            param="continue_final_message",
            code="invalid_value",
        )
    return str(rendered([last])[0]["content"])


def _rendered(request: ChatRequest, model: ServedModel, plan: ToolPlan) -> Rendered:
    _continued(request)
    chat = Chat(
        rendered(request.messages),
        tools=plan.shown,
        template=_template_variables(request, model),
        continue_final_message=bool(request.continue_final_message),
    )
    return rendered_for(chat, model)


def _template_variables(request: ChatRequest, model: ServedModel) -> dict[str, Any]:
    variables = dict(request.chat_template_kwargs or {})
    effort = request.reasoning_effort
    if effort is None:
        return variables
    if model.grades_thinking:
        variables.setdefault("reasoning_effort", effort)
    elif effort == "none" and model.switches_thinking:
        variables.setdefault("enable_thinking", False)
    elif effort != ("medium" if model.thinks else "none"):
        reason = "does not think; use 'none'"
        if model.thinks:
            reason = "has no grades of thinking; use 'medium'"
            reason += ", 'none'" if model.switches_thinking else ""
        raise RequestError(
            f"reasoning_effort: this model {reason}, or leave it out",
            param="reasoning_effort",
            code="unsupported_value",
        )
    return variables


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens: {old} and max_completion_tokens={new} cannot both hold; give one",
            param="max_tokens",
            code="invalid_value",
        )
    return limit_of(new if new is not None else old)


def _top_logprobs(request: ChatRequest) -> int | None:
    if request.logprobs:
        return request.top_logprobs or 0
    if request.top_logprobs is not None:
        raise RequestError(
            "top_logprobs: needs logprobs to be true",
            param="top_logprobs",
            code="invalid_value",
        )
    return None
