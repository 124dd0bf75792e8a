"""What is left of a text of which parts were taken back."""

from __future__ import annotations

import mlxgen
from mlxgen.engine import Usage
from mlxgen.engine.chunk import fold
from mlxgen.server.openai_reply import settled
from mlxgen.text import TextDecoder


def test_what_stays_has_the_same_text_and_tokens_without_retractions() -> None:
    lm = mlxgen.load()

    async def program(g: mlxgen.Guide) -> None:
        await g.fixed("One é")
        start = g.label()
        await g.fixed(" tow é")
        await g.gen(max_tokens=2)
        await g.backtrack(start)
        await g.fixed(" two é")
        await g.gen(max_tokens=3, temperature=1)

    run = lm.control("Once", mlxgen.Program(program), seed=1, stop="zzz")
    chunks = [chunk for _, chunk in run]
    assert any(chunk.retract for chunk in chunks)
    left = list(settled(chunks, TextDecoder(lm.vocabulary, strip=False)))
    whole = fold(chunks, Usage())
    again = fold(left, Usage())
    assert (again.text, again.tokens) == (whole.text, whole.tokens)
    assert again.finish_reason == whole.finish_reason
    assert not any(chunk.retract for chunk in left)
