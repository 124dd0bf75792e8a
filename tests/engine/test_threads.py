"""What belongs to a thread says so to the others, and what does not works in all of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mlx.core as mx
import pytest

import mlxgen
from mlxgen import LanguageModel, Session, StateError
from tests.fakes import byte_level_tokenizer
from tests.fakes.checkpoints import tiny_config, tiny_model
from tests.fakes.controllers import Recited
from tests.fakes.prefix_integrity import check_integrity
from tests.fakes.speaking import PROMPT, reciter

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


def test_a_stream_that_was_not_used_can_be_handed_over() -> None:
    speaker = reciter(WORDS)
    stream = speaker.lm.stream(PROMPT)
    assert elsewhere(lambda: "".join(chunk.text for chunk in stream)) == "".join(WORDS)
    with pytest.raises(StateError, match="thread 'other'"):
        next(stream)


def test_a_generator_that_another_thread_finalises_is_no_error() -> None:
    speaker = reciter(WORDS)

    def texts() -> Iterator[str]:
        with speaker.lm.stream(PROMPT) as stream:
            for chunk in stream:
                yield chunk.text

    held = [texts()]
    assert next(held[0]) == "one "
    elsewhere(held.clear)
    elsewhere(gc.collect)
    assert speaker.lm.generate(PROMPT).text == "".join(WORDS)


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
