"""Requests of the Responses API: from the body to a ``Call``.

Invariant: that of chat requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ...chat import Chat
from ...chat.calls.use import Form, ToolUse
from ...chat.template.sandbox import RenderLimits
from ...chat.turn import Turn, plan_turn
from ...engine import Options, Prompt
from ...errors import MlxgenError
from ...filters import JsonObject
from ..asked import Asked, Question, call_of
from ..call import Call, Event, Reply
from ..errors import RequestError, as_request_error
from ..history import responses_history
from ..openai.constraints import json_form
from ..openai.options import limit_of
from ..openai.reading import read
from ..openai.schemas import TextFormat
from ..served_model import ServedModel
from ..text_request import options_of
from ..tool_use import Choice, functions_in, left_out, tool_use
from .elsewhere import ELSEWHERE
from .items import goes_on, rendered
from .output import SUMMARY, THOUGHTS
from .reply import ResponsesReply
from .schemas import FunctionTool, NamedFunction, ResponsesRequest, SchemaFormat

_FIELDS = {
    "prompt": "input",
    "messages": "input",
    "template": "chat_template_kwargs",
    "reasoning_effort": "reasoning.effort",
    "max_tokens": "max_output_tokens",
}
_FORMAT = "text.format"


def parse_responses(body: Mapping[str, Any], model: ServedModel) -> Call:
    """Parse a body; raises ``RequestError``, which names the field at fault."""
    known = read(body, ResponsesRequest, ELSEWHERE, served=model, mend=responses_history)
    request = known.request
    model = model.called(request.model)
    if "message.output_text.logprobs" in (request.include or ()):
        raise RequestError.at(
            "include",
            "log-probabilities are reported by POST /v1/chat/completions; leave them out",
            "unsupported_value",
        )
    functions = functions_in(request.tools, FunctionTool)
    params = {**_FIELDS, "filters": _FORMAT}
    thinking = request.reasoning
    try:
        turn = Turn(
            chat=Chat(
                rendered(request.instructions, request.input),
                template=request.chat_template_kwargs or {},
                continue_final_message=goes_on(request.input),
            ),
            tools=_tools(request, functions),
            form=_form(request),
            effort=None if thinking is None else thinking.effort,
            thinking_budget=request.thinking_budget,
            usual_budget=model.thinking_budget,
        )
        plan = plan_turn(turn, model.dialect, RenderLimits())
    except MlxgenError as error:
        raise as_request_error(error, params) from error
    params |= {"filters": params.get(plan.field, plan.field)}
    if plan.spec is not None:
        params["dead_end"] = params["filters"]
    ignored = known.ignored(_FIELDS.get(name.partition("[")[0], name) for name in plan.ignored)
    prompt = Prompt(plan.ids, plan.opens_text, plan.thinking)
    asked = Asked(
        questions=[Question(at="input", prompt=prompt, reading=plan.reading)],
        options={
            **options_of(request),
            "max_tokens": limit_of(request.max_output_tokens),
            "thinking_budget": plan.thinking_budget,
        },
        spec=plan.spec,
        stop=plan.stop,
        held=plan.held,
        stream=bool(request.stream),
        watched=bool(request.return_progress),
        params=params,
        ignored=[*ignored, *left_out(request.tools, FunctionTool)],
    )
    wanted = thinking and (thinking.summary or thinking.generate_summary)
    make = partial(
        ResponsesReply,
        thoughts=THOUGHTS if wanted in (None, "none") else SUMMARY,
        stream=asked.stream,
        progress=asked.watched,
        params=params,
    )
    about = _about(request, functions)

    def reply(questions: Sequence[Question], options: Options, id: str, created: int) -> Reply:
        chosen = options.sampling
        in_force = {"temperature": chosen.temperature, "top_p": chosen.top_p}
        return make(
            questions[0].reading, id, created, about={**about, "model": model.name, **in_force}
        )

    return call_of(asked, model, reply)


def _tools(request: ResponsesRequest, functions: Mapping[str, FunctionTool]) -> ToolUse | None:
    many = request.parallel_tool_calls is not False
    return tool_use(functions, _choice(request), many=many)


def _choice(request: ResponsesRequest) -> Choice:
    choice = request.tool_choice
    if choice is None:
        return Choice()
    if isinstance(choice, str):
        return Choice(choice)
    if isinstance(choice, NamedFunction):
        return Choice("named", {"tool_choice.name": choice.name})
    named = {
        f"tool_choice.tools[{i}].name": tool.name or ""
        for i, tool in enumerate(choice.tools)
        if tool.type == "function"
    }
    if not named and choice.mode == "auto":  # nothing but tools that are left out
        return Choice("none")
    if not named:
        raise RequestError.at("tool_choice.tools", "there is no function among them; add one")
    return Choice(choice.mode, named)


def _form(request: ResponsesRequest) -> Form | None:
    format = None if request.text is None else request.text.format
    if format is None or isinstance(format, TextFormat):
        return None
    if isinstance(format, SchemaFormat):
        return json_form(_FORMAT, format.schema_)
    return Form(_FORMAT, JsonObject(), is_json=True)


def _about(request: ResponsesRequest, functions: Mapping[str, FunctionTool]) -> Event:
    """What every response says of its request."""
    tools = [tool.model_dump() for tool in functions.values()]
    choice, text, thinking = request.tool_choice, request.text, request.reasoning
    format = None if text is None or text.format is None else text.format
    shown = {"type": "text"} if format is None else format.model_dump(by_alias=True)
    return {
        "background": False,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {
            "effort": None if thinking is None else thinking.effort,
            "summary": None if thinking is None else thinking.summary,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "store": False,
        "text": {"format": shown, "verbosity": None if text is None else text.verbosity},
        "tool_choice": "auto"
        if choice is None
        else choice
        if isinstance(choice, str)
        else choice.model_dump(),
        "tools": tools,
        "top_logprobs": 0,
        "truncation": "disabled",
        "user": request.user,
    }
