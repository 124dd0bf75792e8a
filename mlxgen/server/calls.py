"""The face of the wire: what the rest of the server uses of ``mlxgen.server.wire``.

    call = parse_chat(body, model)            # RequestError for what cannot be done
    reply = call.reply(id="chatcmpl-1", created=0)
    rows = lm.prepare_all(call.jobs)
    reply.start()                             # the first events, if call.stream
    reply.push(index, chunk)                  # events for each chunk of call.jobs[index]
    reply.finish(usages)                      # the last events, or
    reply.complete(usages)                    # the whole answer, if not call.stream

Parsing renders chat templates and may take a while; it touches no MLX and may run in any
thread. Nothing here compiles grammars: ``call.specs`` are those that ``lm.prepare_all`` will.
"""

from __future__ import annotations

from .wire.call import Call, Event, Job, Reply
from .wire.chat import parse_chat
from .wire.completion import parse_completion
from .wire.errors import RequestError, as_request_error, error_body
from .wire.llama import parse_llama
from .wire.props import in_force, props_of, tokenizer_of
from .wire.schemas import ChatRequest, CompletionRequest
from .wire.served_model import ServedModel

__all__ = [
    "Call",
    "ChatRequest",
    "CompletionRequest",
    "Event",
    "Job",
    "Reply",
    "RequestError",
    "ServedModel",
    "as_request_error",
    "error_body",
    "in_force",
    "parse_chat",
    "parse_completion",
    "parse_llama",
    "props_of",
    "tokenizer_of",
]
