"""What texts come to, whichever way they are asked for: every line of
``tests/data/generations.jsonl``.

A line has what the model says, what is asked of it, and what must come of it; ``with`` has further
options that change none of it. What a line does not name may be anything, but it is the same for
streams, batches, drafts and sessions.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlxgen.engine.chunk import Chunk
from tests.fakes.speaking import PROMPT, Speaker

from ...effort import tries
from ..kit import in_every_way, options_of, speaker_of, streamed

TABLE = Path(__file__).parents[2] / "data" / "generations.jsonl"
CASES = [json.loads(line) for line in TABLE.read_text(encoding="utf-8").splitlines()]


def reported(speaker: Speaker, chunks: list[Chunk]) -> dict[str, Any]:
    """What chunks tell beside the text, by positions."""
    rejected = {
        str(chunk.index): [[speaker.text([r.token]), r.reason, r.by] for r in chunk.rejected]
        for chunk in chunks
        if chunk.rejected
    }
    return {
        "rejected": rejected,
        "forced": [chunk.index for chunk in chunks if chunk.forced],
        "exhausted": [chunk.index for chunk in chunks if chunk.exhausted],
    }


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES, ids=[case["why"] for case in CASES])
def test_a_text_is_what_was_asked_for(case: dict[str, Any]) -> None:
    for more in case.get("with", [{}]):
        speaker, options = speaker_of(case["model"]), options_of({**case["options"], **more})
        prompt = speaker.tokens(case["prompt"]) if "prompt" in case else PROMPT
        chunks = streamed(speaker, prompt, **options)
        seen = reported(speaker, chunks)
        for name in case.keys() & seen.keys():
            assert seen[name] == case[name]
        passes = speaker.model.passes
        assert passes == case.get("passes", passes)

        result = speaker.lm.generate(prompt, **options)
        stop = list(result.stop) if isinstance(result.stop, tuple) else result.stop
        assert stop == case.get("stop")
        assert result.usage.completion_tokens == len(result.tokens)
        for name, value in case.get("usage", {}).items():
            found = getattr(result.usage, name)
            assert found == value or (value and isinstance(value, str) and value in found)

        text, _, reason = in_every_way(speaker, prompt, case.get("not", ()), **options)
        assert text == case.get("text", text)
        assert text.endswith(case.get("ends_with", ""))
        assert reason == case.get("reason", reason)


TAKEN_UP = [case for case in CASES if not {"hooks", "heal", "loops"} & case["options"].keys()]


@settings(max_examples=tries(480))
@given(
    case=st.sampled_from(TAKEN_UP),
    moves=st.lists(st.tuples(st.integers(1, 90), st.integers(0, 90)), max_size=3),
    kept=st.floats(0, 1),
)
def test_back_forked_or_taken_up_from_a_prefix_it_comes_to_the_same(
    case: dict[str, Any], moves: list[tuple[int, int]], kept: float
) -> None:
    speaker, options = speaker_of(case["model"]), options_of(case["options"])
    prompt = speaker.tokens(case["prompt"]) if "prompt" in case else PROMPT
    whole = speaker.lm.generate(prompt, **options)
    with speaker.lm.stream(prompt, **options) as stream:
        for on, back in moves:
            for _, chunk in zip(range(on), stream, strict=False):
                if chunk.finish_reason is not None:
                    break
            stream.rewind(min(back, len(stream.tokens)))
        (twin,) = stream.fork()
        for each in (stream, twin):
            list(each)
            assert (each.text, tuple(each.tokens)) == (whole.text, whole.tokens)
    prefix = whole.tokens[: int(kept * (len(whole.tokens) - 1))]
    rest = speaker.lm.generate(prompt, prefix=prefix, **options)
    assert (rest.tokens, rest.finish_reason) == (whole.tokens, whole.finish_reason)
    assert whole.text.endswith(rest.text)
