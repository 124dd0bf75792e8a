"""The fields that chats and completions have in common, and what the text of an answer must match.

There is at most one constraint of the text, besides a check, and it knows the field that it came
from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field

from ..chat.calls.use import Form
from ..errors import MlxgenError
from ..filters import Choice, Lark, Regex
from ..filters.gbnf import is_gbnf, lark_of
from .errors import RequestError, as_request_error
from .fields import (
    MAX_CHOICES,
    MAX_STOPS,
    Body,
    Budget,
    CheckField,
    Count,
    Format,
    Json,
    Named,
    Piece,
    Schema,
    ShortText,
    Text,
    TextRequest,
    about,
    format_of,
    json_form,
    option,
)
from .registry import Registry

MAX_BANNED = 10_000
MAX_OPTIONS = 4096
MAX_HOOKS = 16
MAX_REGEX = 20_000
MAX_GRAMMAR = 200_000

RegexText: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_REGEX)]
Grammar: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_GRAMMAR)]
Pieces: TypeAlias = Annotated[list[ShortText], Field(max_length=MAX_STOPS)]


class TextPart(Piece):
    """A piece of text."""

    type: Literal["text"]
    text: str


class StreamOptions(Body):
    """What a stream has in addition to the answer."""

    include_usage: bool | None = None


class Prediction(Body):
    """What the text will be for the most part."""

    type: Literal["content"]
    content: str | list[TextPart]

    @property
    def text(self) -> str:
        """All of it."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class FormFields(CheckField):
    """Where a text ends, and what it matches."""

    stop: ShortText | Pieces | None = option("stop")
    stop_token_ids: Annotated[list[Count], Field(max_length=MAX_STOPS)] | None = option(
        "stop_tokens"
    )
    response_format: Format | None = about(
        "the format of the text: text, json_object or json_schema"
    )
    json_schema: Schema | None = about(
        "the text is JSON that matches this schema; objects have only the keys that it names, "
        "unless additionalProperties allows more"
    )
    regex: RegexText | None = about("the whole text matches this regular expression")
    grammar: Grammar | None = about("the text follows this grammar, in Lark or GBNF")
    choice: Annotated[list[str], Field(min_length=1, max_length=MAX_OPTIONS)] | None = about(
        "the text is one of these"
    )


class GenerationRequest(TextRequest, FormFields):
    """What chat and completion requests have in common."""

    stream_options: StreamOptions | None = about("what a stream has in addition to the answer")
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = about(
        "number of answers for each prompt (default: 1)"
    )
    max_tokens: Budget | None = about(
        "maximum number of tokens to generate; -1 is as many as the context holds"
    )
    banned: Annotated[list[ShortText], Field(max_length=MAX_BANNED)] | None = about(
        "strings that never appear in the answer"
    )
    ban_strength: float | None = option("ban_strength")
    heal: bool | None = option("heal")
    num_draft_tokens: int | None = option("num_draft_tokens", low=0, also="; 0 is no draft")
    prediction: Prediction | None = option("prediction")
    prefix_tokens: list[Count] | None = option("prefix")
    close_json: bool | None = option("close_json")
    prompt_logprobs: int | None = option("prompt_logprobs", also="; not for streams")
    truncate_prompt_tokens: Budget | None = about(
        "keep this many of the prompt's last tokens; -1 is as many as fit"
    )
    return_token_ids: bool | None = about(
        "add token_ids to each choice, marks to logprobs, and prompt_token_ids to a whole answer"
    )
    timings_per_token: bool | None = about(
        "add timings to each event of a stream and to a whole answer: tokens and milliseconds"
    )
    program: Text | None = about(
        "a program of the server's operator that writes the text; GET /v1/programs lists them"
    )
    controller: Text | None = about("a controller of the server's operator, likewise")
    hooks: Annotated[list[Text | Named], Field(max_length=MAX_HOOKS)] | None = about(
        "hooks of the server's operator, by name or as an object with name and arguments"
    )
    arguments: Json | None = about("arguments of the program, the controller or the one hook")
    allow_retract: bool | None = about(
        "send text at once, and retract in an event if its last characters are taken back"
    )
    hold_tokens: int | None = option("hold_tokens")
    max_resample: int | None = option("max_resample")

    @property
    def steered_by(self) -> Literal["program", "controller"] | None:
        """What of the operator's writes the text, if anything does."""
        if self.program is not None:
            return "program"
        return None if self.controller is None else "controller"


# ---- what the text must match --------------------------------------------------------------------

_MAKERS: Mapping[str, Callable[[Any], Form]] = {
    "json_schema": partial(json_form, "json_schema"),
    "regex": lambda pattern: Form("regex", Regex(pattern)),
    "grammar": lambda text: Form("grammar", Lark(lark_of(text) if is_gbnf(text) else text)),
    "choice": lambda options: Form("choice", Choice(options)),
}
FORMS = ("response_format", *_MAKERS, "check")
"""The fields that become filters."""


def form_of(request: FormFields, registry: Registry) -> Form | None:
    """What the text must match; raises ``RequestError`` if it is invalid or more than one, besides
    a check."""
    return registry.checked(_form_of(request), request.check)


def _form_of(request: FormFields) -> Form | None:
    format = format_of("response_format", request.response_format)
    fields = [name for name in _MAKERS if getattr(request, name) is not None]
    fields = ["response_format", *fields] if format is not None else fields
    if len(fields) > 1:
        raise RequestError.at(fields[1], f"cannot be combined with {fields[0]}; send one of them")
    if not fields or format is not None:
        return format
    [field] = fields
    try:
        return _MAKERS[field](getattr(request, field))
    except MlxgenError as error:
        raise as_request_error(error, {"filters": field}) from error
