"""``/tokenize``, ``/detokenize`` and ``/apply-template``: text to token ids and back.

Owns their bodies and their answers. Must never know how a request is transported. The names are
those of other local servers: ``prompt`` and ``messages`` with ``count`` and ``max_model_len``, or
``content`` with ``add_special`` and ``with_pieces``. Invariant: a text that is tokenized without
special tokens and detokenized is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from ..chat.turn import Effort, prompt_of
from ..errors import MlxgenError
from ..images import plain
from ..tokens import Token, Vocabulary
from .bodies import modelled
from .conversation import of_chat
from .errors import RequestError, as_request_error
from .exchange import Exchange, Work
from .fields import Body, Json, ModelName, about, named
from .openai import NAMES, ChatRequest, Tool, turn_of
from .remote_images import put_into
from .served_model import ServedModel
from .wire import to_json

MAX_TOKENS = 1 << 20
_OF_TOKENS = {
    *("prompt", "content", "add_special", "add_special_tokens", "continues"),
    *("return_token_strs", "with_pieces"),
}
"""Fields that a chat request does not have."""

TokenId: TypeAlias = Annotated[int, Field(ge=0, lt=1 << 31)]


class TokenizeRequest(Body):
    """Exactly one of ``prompt``, ``content`` (the same) and ``messages`` is required."""

    model: ModelName | None = named()
    prompt: str | None = about("raw text")
    content: str | None = about("raw text")
    messages: list[Json] | None = about("for the chat template")
    tools: list[Tool] | None = about("for the chat template")
    reasoning_effort: Effort | None = about("as in a chat")
    add_generation_prompt: bool | None = about("begin an answer after the messages (default: true)")
    chat_template_kwargs: Json | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = about("add a begin token (default: true)")
    add_special: bool | None = about("the same as add_special_tokens")
    continues: bool | None = about(
        "tokens that go on with a text: no begin token and no leading space; the text of one "
        "control token is that token"
    )
    return_token_strs: bool | None = about("add token_strs")
    with_pieces: bool | None = about("tokens as objects with pieces")


class DetokenizeRequest(Body):
    """Token ids."""

    model: ModelName | None = named()
    tokens: Annotated[list[TokenId], Field(max_length=MAX_TOKENS)]
    with_pieces: bool | None = about("add tokens, with their pieces")


OfTokens: TypeAlias = Callable[[Any, ServedModel], dict[str, Any]]


def on_tokens(body: type[Any], answer: OfTokens) -> Work:
    """The work of an endpoint that needs a model's tokenizer but not its engine."""

    async def work(exchange: Exchange) -> bytes:
        request = (await exchange.read(body)).request
        serving = await exchange.use(request.model)
        if serving.fetches:
            await put_into(vars(request))
        run = exchange.service.workers.run
        return await run(lambda: to_json(answer(request, serving.model)))

    return work


def tokenize(request: TokenizeRequest, model: ServedModel) -> dict[str, Any]:
    """The tokens of a text or a chat."""
    given = [
        name for name in ("prompt", "content", "messages") if getattr(request, name) is not None
    ]
    if len(given) != 1:
        which = " and ".join(given) if given else "nothing"
        raise RequestError(
            f"expected one of prompt, content and messages, got {which}",
            param=given[-1] if given else "prompt",
            code="invalid_value",
        )
    vocabulary, text = model.vocabulary, request.prompt or request.content or ""
    if given == ["messages"]:
        chat = request.model_dump(exclude_unset=True, exclude=_OF_TOKENS)
        tokens = tokens_of(modelled(chat, ChatRequest.model_validate), model)
    elif not text:
        tokens = []
    elif request.continues:
        tokens = vocabulary.encode(text, special=False)
        if len(tokens) != 1 or vocabulary.piece(tokens[0]) != text.encode():
            tokens = vocabulary.continue_with(text.encode())
    else:
        special = request.add_special_tokens is not False and request.add_special is not False
        tokens = vocabulary.encode(text, special=special)
    answer: dict[str, Any] = {
        "count": len(tokens),
        "max_model_len": model.max_context,
        "tokens": _with_pieces(tokens, vocabulary) if request.with_pieces else tokens,
    }
    if request.return_token_strs:
        pieces = map(vocabulary.piece, tokens)
        answer["token_strs"] = (piece.decode("utf-8", "replace") for piece in pieces)
    return answer


def tokens_of(request: ChatRequest, model: ServedModel) -> list[Token]:
    """The tokens of a chat's prompt; with ``add_generation_prompt: false``, no answer is begun."""
    begins = request.add_generation_prompt is not False
    request = request.model_copy(update={} if begins else {"add_generation_prompt": None})
    turn = turn_of(request, of_chat(request.messages).messages, model)
    turn = replace(turn, chat=replace(turn.chat, add_generation_prompt=begins))
    try:
        return plain(prompt_of(turn, model.dialect).tokens)
    except MlxgenError as error:
        raise as_request_error(error, NAMES) from error


def apply_template(request: ChatRequest, model: ServedModel) -> dict[str, Any]:
    """The text of a chat's prompt."""
    return {"prompt": model.vocabulary.decode(tokens_of(request, model))}


def detokenize(request: DetokenizeRequest, model: ServedModel) -> dict[str, Any]:
    """The text of tokens."""
    size = model.vocabulary.size
    for place, token in enumerate(request.tokens):
        if token >= size:
            raise RequestError.at(
                f"tokens[{place}]", f"expected token ids from 0 to {size - 1}, got {token}"
            )
    text = b"".join(map(model.vocabulary.piece, request.tokens)).decode("utf-8", "replace")
    answer: dict[str, Any] = {"prompt": text, "content": text}
    if request.with_pieces:
        answer["tokens"] = _with_pieces(request.tokens, model.vocabulary)
    return answer


def _with_pieces(tokens: Sequence[int], vocabulary: Vocabulary) -> Iterator[dict[str, Any]]:
    """Each token with its text, or, if its bytes alone are not text, with its bytes, as in
    llama.cpp's server. One by one, since all objects at once would burden the garbage collector."""
    for token in tokens:
        piece = vocabulary.piece(token)
        try:
            yield {"id": token, "piece": piece.decode()}
        except UnicodeDecodeError:
            yield {"id": token, "piece": list(piece)}
