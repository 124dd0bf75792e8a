"""Requests of the Messages API: from the body to a ``Call``, or to the tokens of its prompt.

Invariant: that of chat requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ...chat import Chat
from ...chat.calls.use import Form, ToolUse
from ...chat.template.sandbox import RenderLimits
from ...chat.turn import Effort, Plan, Turn, plan_turn
from ...engine import Prompt
from ...errors import MlxgenError
from ..asked import Asked, Question, call_of
from ..call import Call
from ..errors import RequestError, as_request_error
from ..history import messages_history
from ..openai.constraints import json_form
from ..openai.reading import read
from ..served_model import ServedModel
from ..text_request import options_of
from ..tool_use import Choice, functions_in, left_out, tool_use
from .conversation import rendered
from .elsewhere import ELSEWHERE
from .reply import MessagesReply
from .schemas import CountRequest, FunctionTool, MessagesRequest, ToolChoice

_FIELDS = {
    "prompt": "messages",
    "template": "chat_template_kwargs",
    "reasoning_effort": "output_config.effort",
}


def parse_messages(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = read(body, MessagesRequest, ELSEWHERE, served=model, mend=messages_history)
    request = known.request
    model = model.called(request.model)
    plan = _plan(request, model)
    stops = request.stop_sequences or []
    prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
    silent = request.thinking is not None and request.thinking.type == "disabled"
    places = _FIELDS | ({"reasoning_effort": "thinking"} if silent else {})
    if request.thinking_budget is None:
        places["thinking_budget"] = "thinking.budget_tokens"
    ignored = known.ignored(places.get(name, name.partition("[")[0]) for name in plan.ignored)
    asked = Asked(
        questions=[Question(at="messages", prompt=prompt, reading=plan.reading)],
        options={
            **options_of(request),
            "stop": stops,
            "thinking_budget": plan.thinking_budget,
        },
        spec=plan.spec,
        stop=plan.stop,
        held=plan.held,
        stream=bool(request.stream),
        watched=bool(request.return_progress),
        params={
            **_FIELDS,
            "filters": plan.field,
            **({} if plan.spec is None else {"dead_end": plan.field}),
        },
        ignored=[*ignored, *left_out(request.tools, FunctionTool)],
    )
    make = partial(
        MessagesReply,
        model=model.name,
        prompt_tokens=len(plan.ids),
        stream=asked.stream,
        stops=frozenset(stops),
        thinks=not silent,
        progress=asked.watched,
        params=asked.params,
    )
    return call_of(asked, model, lambda each, options, id, created: make(each[0].reading, id))


def count_tokens(body: Mapping[str, Any], model: ServedModel) -> dict[str, Any]:
    """How many tokens the prompt of a request has."""
    request = read(body, CountRequest, ELSEWHERE, served=model, mend=messages_history).request
    model = model.called(request.model)
    return {"input_tokens": len(_plan(request, model).ids)}


def _plan(request: CountRequest, model: ServedModel) -> Plan:
    messages = rendered(request.system, request.messages)
    last = request.messages[-1]
    chat = Chat(
        messages,
        template=request.chat_template_kwargs or {},
        continue_final_message=last.role == "assistant",
    )
    if chat.continue_final_message and not messages[-1]["content"]:
        raise RequestError.at(
            f"messages[{len(request.messages) - 1}].content",
            "expected some text to be continued, or a message of the user as the last one",
        )
    functions = functions_in(request.tools, FunctionTool)
    try:
        turn = Turn(
            chat=chat,
            tools=_tools(request, functions),
            form=_form(request),
            effort=_effort(request),
            thinking_budget=_budget(request),
            usual_budget=model.thinking_budget,
        )
        return plan_turn(turn, model.dialect, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, _FIELDS) from error


def _tools(request: CountRequest, functions: Mapping[str, FunctionTool]) -> ToolUse | None:
    choice = request.tool_choice
    many = not (choice is not None and choice.disable_parallel_tool_use)
    return tool_use(functions, _choice(choice), many=many)


def _choice(choice: ToolChoice | None) -> Choice:
    if choice is None:
        return Choice()
    if choice.type == "tool":
        return Choice("named", {"tool_choice.name": choice.name or ""})
    return Choice("required" if choice.type == "any" else choice.type)


def _form(request: CountRequest) -> Form | None:
    config = request.output_config
    if config is None or config.format is None:
        return None
    return json_form("output_config.format", config.format.schema_)


def _effort(request: CountRequest) -> Effort | None:
    if request.thinking is not None and request.thinking.type == "disabled":
        return "none"
    return None if request.output_config is None else request.output_config.effort


def _budget(request: CountRequest) -> int | None:
    """How many tokens to think, if the request says so itself."""
    own, thinking = getattr(request, "thinking_budget", None), request.thinking
    if own is not None or thinking is None or thinking.type == "disabled":
        return own
    return thinking.budget_tokens
