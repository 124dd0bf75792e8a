"""The fields with which a request names the operator's own code, and what they exclude.

Invariant: what is named is registered, and has arguments that it takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...sampling import Hook
from ..call import Steered
from ..errors import RequestError
from ..programs.registry import Registry
from .schemas import CompletionRequest, GenerationRequest, NamedHook, kind_of_prompt

_ONE_PROMPT = "a program writes one text and its branches; leave it out"
_EXCLUDED = {
    "n": _ONE_PROMPT,
    "echo": "a program may take back tokens of the prompt; leave it out",
    "tools": "a program decides on the text itself, not on calls of tools; leave them out",
    "prompt_logprobs": "the prompt of a program is not scored; leave it out",
    "timings_per_token": "the times of branches are not told; leave it out",
    "return_progress": "the progress of branches is not told; leave it out",
}
_NOT_TAKEN_BACK = ("logprobs", "return_token_ids", "tools")


def steered_of(request: GenerationRequest, registry: Registry) -> Steered | None:
    """The program or controller of a request; raises ``RequestError``."""
    _check_retract(request)
    program, controller, given = request.program, request.controller, request.arguments
    if program is not None and controller is not None:
        raise RequestError.at("controller", "cannot be combined with program; send one of them")
    if program is None and controller is None:
        return None
    _check_alone(request, "controller" if program is None else "program")
    if program is not None:
        return registry.steered("program", program, "program", given, "arguments")
    assert controller is not None
    return registry.steered("controller", controller, "controller", given, "arguments")


def hooks_of(request: GenerationRequest, registry: Registry) -> Sequence[Hook]:
    """The hooks of a request; raises ``RequestError``."""
    named, given = request.hooks or [], request.arguments
    if request.program is None and request.controller is None and given is not None:
        if len(named) != 1 or not isinstance(named[0], str):
            raise RequestError.at(
                "arguments", "are for a program, a controller or one hook; name one of these"
            )
        return [registry.hook(named[0], "hooks[0]", given, "arguments")]
    hooks = []
    for place, each in enumerate(named):
        at = f"hooks[{place}]"
        if isinstance(each, NamedHook):
            name, own = each.name, each.arguments
            hooks.append(registry.hook(name, f"{at}.name", own, f"{at}.arguments"))
        else:
            hooks.append(registry.hook(each, at, None, f"{at}.arguments"))
    return hooks


def _check_alone(request: GenerationRequest, what: str) -> None:
    """Raise ``RequestError`` for fields that make no sense with a program or controller."""
    for name, reason in _EXCLUDED.items():
        if _is_given(request, name) and not (name == "n" and request.n == 1):
            raise RequestError.at(name, f"cannot be used with {what}: {reason}")
    prompt = request.prompt if isinstance(request, CompletionRequest) else ""
    if kind_of_prompt(prompt) in ("texts", "several"):
        raise RequestError.at("prompt", f"expected one prompt with {what}, got a list")


def _check_retract(request: GenerationRequest) -> None:
    steered = request.program is not None or request.controller is not None
    late = "hold_tokens" if steered and request.hold_tokens else None
    field = "allow_retract" if request.allow_retract else late
    if field is None or not request.stream:
        return
    for name in _NOT_TAKEN_BACK:
        if _is_given(request, name):
            raise RequestError.at(
                field,
                f"what {name} adds to a stream cannot be taken back; leave out one of them",
            )


def _is_given(request: GenerationRequest, name: str) -> bool:
    value = getattr(request, name, None)
    return value is not None and value is not False and value != []
