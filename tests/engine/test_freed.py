"""Nothing keeps what nobody holds, neither a model and its vocabulary nor the KV of a stream; and
what belongs to a thread says so to the others."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import ref

import mlx.core as mx
import pytest

import mlxgen
from mlxgen import LanguageModel, Session, StateError
from mlxgen.engine.options import Options
from mlxgen.engine.scheduling.scheduler import Scheduler
from tests.engine.kit import options_for
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.controllers import Recited, anything
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import PROMPT, Speaker, endless, reciter

USES = options_for("freed")


@pytest.mark.parametrize("use", USES)
def test_a_model_goes_with_its_vocabulary(use: str) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    lm.generate("so sad", max_tokens=3, **USES[use])
    lm.generate([{"role": "user", "content": "so"}], max_tokens=2)
    held = [ref(each) for each in (lm, lm.model, lm.vocabulary, lm.tokenizer)]
    del lm, tokenizer
    gc.collect()
    assert [each() for each in held] == [None] * 4


@pytest.fixture
def uncollected() -> Iterator[None]:
    """What is still there is in use, or in a circle."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Given:
    """A hook of a generation, and its controller: who holds one of them holds the generation."""

    def __call__(self, result: mlxgen.PostSamplingResult) -> None:
        pass


def pushed(speaker: Speaker, given: Given) -> mlxgen.Session:
    session = mlxgen.Session(speaker.tokenizer, hooks=given, filters=mlxgen.Regex("[a-z]*"))
    for letter in b"abc":
        session.push_token(letter)
    return session


def forked(speaker: Speaker, given: Given) -> mlxgen.Stream:
    stream = speaker.lm.stream(PROMPT, hooks=given)
    next(stream)
    for twin in stream.fork(2):
        next(twin)
    return stream


class Holding(Recited):
    held: Any = None


def branched(speaker: Speaker, given: Given) -> mlxgen.Control[Any]:
    controller = Holding([anything(speaker)] * 2, [anything(speaker)])
    controller.held = given
    return speaker.lm.control(PROMPT, controller)


def programmed(speaker: Speaker, given: Given) -> mlxgen.Control[Any]:
    async def program(g: mlxgen.Guide) -> Given:
        if (await g.fork(2)).index:
            await g.until("never")
        await g.gen(max_tokens=50)
        return given

    return speaker.lm.control(PROMPT, mlxgen.Program(program))


GENERATIONS: dict[str, Callable[[Speaker, Given], Any]] = {
    "stream": lambda speaker, given: speaker.lm.stream(PROMPT, hooks=given),
    "fork": forked,
    "batch": lambda speaker, given: speaker.lm.batch([PROMPT] * 3, hooks=given, max_tokens=5),
    "control": branched,
    "program": programmed,
    "session": pushed,
}


@pytest.mark.parametrize("taken", [1, 4, 40])
def test_a_generation_that_is_over_goes_at_once(taken: int, uncollected: None) -> None:
    for kind, begin in GENERATIONS.items():
        for closes in (True, False):  # but the coroutine of a program has the guide that has it
            given = Given()
            generation, held = begin(endless(), given), ref(given)
            if not isinstance(generation, mlxgen.Session):
                for _ in range(taken):
                    next(generation, None)
                if closes or kind == "program":
                    generation.close()
            elif closes:
                generation.finish()
            del generation, given
            assert held() is None, (kind, closes)


@pytest.mark.parametrize("draft", ["off", "auto", "model"])
@pytest.mark.parametrize("use", USES)
def test_a_request_that_has_ended_goes_at_once(use: str, draft: str, uncollected: None) -> None:
    lm = mlxgen.load()
    options = {**USES[use], "draft": lm if draft == "model" else draft, "max_tokens": 6}
    scheduler = Scheduler(lm.runtime)
    held: list[ref[Any]] = []
    for _ in range(2):
        handle = scheduler.submit(lm.runtime.prepare("so sad", Options.of(options)))
        devices = [vars(each).get("_device") for each in handle.drafts.drafters]
        parts: list[Any] = [handle, handle.request, *handle.drafts.drafters, *devices]
        held += [ref(part) for part in parts if part is not None]
        del handle, devices, parts
    cancelled = scheduler.submit(lm.runtime.prepare("so sad", Options.of(options)))
    for _ in range(4):
        scheduler.step()
    gone = ref(cancelled)
    scheduler.cancel(cancelled)
    del cancelled
    assert gone() is None
    while scheduler.busy:
        scheduler.step()
    assert [each() for each in held] == [None] * len(held)
    held = [ref(each) for each in (scheduler, scheduler._loop, scheduler._loop.runner)]
    del scheduler
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.parametrize("rest", [0, 30])
def test_the_cache_of_a_stream_that_is_dropped_goes_at_once(rest: int, uncollected: None) -> None:
    tokenizer = byte_level_tokenizer()
    lm = LanguageModel(tiny_model(tiny_config(len(tokenizer))), tokenizer)
    before = mx.get_active_memory()
    stream = lm.stream([5, 6, 7] * 200, max_tokens=40, ignore_eos=True)
    for _ in range(10 + rest):
        next(stream)
    held = mx.get_active_memory() - before
    del stream
    until = time.monotonic() + 30  # what was submitted is held until it is computed
    while mx.get_active_memory() - before >= held / 4:
        assert time.monotonic() < until
        time.sleep(0.01)


# ---- threads ------------------------------------------------------------------------------------

WORDS = ["one ", "two ", "three ", "four ", "five ", "six "]


def elsewhere(call: Callable[[], Any]) -> Any:
    """What a call gives, or raises, in another thread."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((call(), None))
        except BaseException as error:
            found.append((None, error))
        mx.clear_streams()  # or MLX may abort, when the process ends right after the thread

    thread = threading.Thread(target=run, name="other")
    thread.start()
    thread.join()
    value, error = found[0]
    if error is not None:
        raise error
    return value


def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(StateError, match="belongs to the thread 'MainThread', which used it first"):
        elsewhere(call)


def test_a_stream_belongs_to_the_thread_that_uses_it_first() -> None:
    speaker = reciter(WORDS)
    with speaker.lm.stream(PROMPT) as stream:
        assert next(stream).text == "one "
        rewind = partial(stream.rewind, tokens=1)
        for call in (partial(next, stream), rewind, stream.fork, stream.keep):
            refused(call)
        told = elsewhere(lambda: (stream.text, len(stream.tokens), stream.finish_reason))
        assert told == ("one ", 1, None)
        twin = stream.fork()[0]
        refused(lambda: next(twin))
        assert "".join(chunk.text for chunk in stream) == "two three four five six "
        assert next(chunk.text for chunk in twin) == "two "
    unused = speaker.lm.stream(PROMPT)  # which can be handed over
    assert elsewhere(lambda: "".join(chunk.text for chunk in unused)) == "".join(WORDS)
    with pytest.raises(StateError, match="thread 'other'"):
        next(unused)


def test_what_belongs_to_a_thread_is_closed_by_any_as_a_request() -> None:
    lm = reciter(WORDS).lm
    stream, batch = lm.stream(PROMPT), lm.batch([PROMPT, PROMPT])
    control = lm.control(PROMPT, Recited([mlxgen.Branch(sample_mask=list(b"xyz"))]))
    for each in (stream, batch, control):
        next(each)
        refused(partial(next, each))
        elsewhere(each.close)
    refused(partial(control.leave, ()))
    # Nothing has changed under whoever runs it
    assert (stream.finish_reason, batch.busy, control.branches) == (None, True, ((),))
    with pytest.raises(StateError, match="closed"):
        stream.rewind(tokens=1)
    assert [*stream, *batch, *control] == []
    assert (stream.finish_reason, batch.busy, control.branches) == ("cancelled", False, ())
    assert control.results[()].finish_reason == "cancelled" and stream.text == "one "
    stream.close()


def test_a_session_takes_one_call_at_a_time_from_any_thread() -> None:
    speaker = reciter(WORDS)
    errors: list[StateError] = []

    def hook(result: Any) -> None:
        for call in (session.fork, session.mask, lambda: session.push_token(65)):
            with pytest.raises(StateError, match="has not returned") as caught:
                elsewhere(call)
            errors.append(caught.value)

    session = Session(speaker.tokenizer, prompt=PROMPT, hooks=[hook])
    logits = [0.0] * speaker.vocabulary.size
    elsewhere(lambda: session.push_logits(logits))
    assert len(errors) == 3 and len(session.tokens) == 1
    session.push_logits(logits)
    assert len(session.tokens) == 2


def test_several_threads_generate_with_one_model() -> None:
    lm = mlxgen.load()
    prompts = ["Once upon a time there was a clever fox who", "Once upon a time there was a king"]

    def work() -> list[int]:
        said = [lm.generate(p, max_tokens=12, temperature=0.9, seed=3) for p in prompts]
        batch = lm.batch(prompts, max_tokens=12, temperature=0.9, seed=3)
        list(batch)
        return [len(result.tokens) for result in (*said, *batch.results) if result is not None]

    found: list[list[int]] = []
    threads = [threading.Thread(target=lambda: found.append(elsewhere(work))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[12] * 4] * 3
    check_integrity(lm.prefix_cache)


def test_a_model_is_whole_before_another_thread_uses_it() -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    tokenizer = byte_level_tokenizer()
    model = tiny_model(tiny_config(len(tokenizer), rope_scaling=scaling))
    mx.eval(model.parameters())  # as mlx_lm.load does; the frequencies are no parameters
    lm = LanguageModel(model, tokenizer)
    assert len(elsewhere(lambda: lm.generate([1, 2, 3], max_tokens=3, ignore_eos=True).tokens)) == 3
