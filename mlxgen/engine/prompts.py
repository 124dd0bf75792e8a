"""Many prompts with their options, as requests: each by itself, or as a copy of the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from ..errors import MlxgenError, OptionError
from ..options.table import GenerationOptions
from .options import Options
from .request.prompt import AnyPrompt
from .request.request import Request

Prepare: TypeAlias = Callable[[AnyPrompt, Options], Request]
Read: TypeAlias = Callable[[AnyPrompt, Mapping[str, Any]], Options]


def requests_of(
    prompts: Iterable[AnyPrompt],
    each: Iterable[GenerationOptions] | None,
    options: GenerationOptions,
    read: Read,
    prepare: Prepare,
) -> Iterator[Callable[[], Request]]:
    """For each prompt, what makes its request; those of a list are made before this returns.

    ``each`` has the options of each prompt that differ from ``options``; ``read`` checks those of a
    prompt, and ``prepare`` makes its request.
    """
    if each is not None:
        if isinstance(each, (str, bytes, Mapping)) or not isinstance(each, Iterable):
            raise _no_options(f"{type(each).__name__}", "a list with a mapping")
        if isinstance(each, Sized) and isinstance(prompts, Sized) and len(each) > len(prompts):
            raise _no_options(f"{len(each)} for {len(prompts)} prompts")
    makers = _makers(prompts, each, options, read, prepare)
    if not isinstance(prompts, Sequence):
        return makers
    ready = []
    for index, make in enumerate(makers):
        try:
            ready.append(make())
        except MlxgenError as error:
            error.add_note(f"in prompts[{index}]")
            raise
    return (partial(_given, request) for request in ready)


def _given(request: Request) -> Request:
    return request


def _no_options(got: str, expected: str = "a mapping") -> OptionError:
    return OptionError("each", f"expected {expected} of options for each prompt, got {got}")


def _makers(
    prompts: Iterable[AnyPrompt],
    each: Iterable[GenerationOptions] | None,
    options: GenerationOptions,
    read: Read,
    prepare: Prepare,
) -> Iterator[Callable[[], Request]]:
    others = iter(each) if each is not None else None
    running: list[Any] = []  # filters that are bound already, so each is for one prompt

    def make(index: int, prompt: AnyPrompt, given: Mapping[str, Any]) -> Request:
        checked = read(prompt, given)
        bound = [filter for filter in checked.filters if not hasattr(filter, "bind")]
        if any(filter is other for filter in bound for other in running):
            raise OptionError(
                "filters",
                f"a running filter serves one prompt, but prompts[{index}] got one that is in "
                "use already; pass a specification such as Regex(pattern), or a filter for "
                "each prompt with each=",
            )
        running.extend(bound)
        return prepare(prompt, checked)

    for index, prompt in enumerate(prompts):
        own = next(others, None) if others is not None else {}
        if not isinstance(own, Mapping):
            got = "none" if own is None else repr(own)
            raise _no_options(f"{got} for prompts[{index}]")
        yield partial(make, index, prompt, {**options, **own})


def prepared(prepare: Prepare, jobs: Iterable[tuple[AnyPrompt, Options]]) -> list[Request]:
    """A request for each job. If consecutive ones differ only in their seed, the first is prepared
    and the others are copies of it."""
    rows: list[Request] = []
    last: tuple[AnyPrompt, Options] | None = None
    for prompt, options in jobs:
        if last is not None and prompt is last[0] and _may_share(last[1], options):
            twin = rows[-1].fork(options.some_seed())
            twin.options = replace(twin.options, seed=options.seed)
            rows.append(twin)
        else:
            rows.append(prepare(prompt, options))
        last = prompt, options
    return rows


def _may_share(one: Options, other: Options) -> bool:
    """Whether a request for one may be a copy of the request for the other, except for its seed.

    The masks of copied filters are computed one after the other, those of filters that were made
    separately in parallel. So with filters, a copy is only worth it if there is a prefix.
    """
    if one.hooks or (one.filters and not one.prefix):
        return False
    return one is other or replace(one, seed=other.seed) == other
