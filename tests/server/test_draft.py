"""A server with drafts answers the same."""

from __future__ import annotations

from importlib import resources

import pytest

from .running import Running, question, running


@pytest.mark.slow
@pytest.mark.parametrize("draft", ["ngram", str(resources.files("mlxgen") / "demo" / "draft")])
def test_drafts_change_no_greedy_answer(server: Running, draft: str) -> None:
    with running("--draft-model", draft) as drafting:
        asked = question("Tell me a story about a fox.", max_tokens=60)
        plain, drafted = [each.chat(asked).json() for each in (server, drafting)]
        assert plain["choices"][0]["message"] == drafted["choices"][0]["message"]
        timings = drafted["usage"]["timings"]
        assert timings.get("draft_n", 0) >= timings.get("draft_n_accepted", 0)
        assert draft == "ngram" or timings["draft_n_accepted"] > 20
        assert "draft_n" not in plain["usage"]["timings"]
        passes = drafting.figure("mlxgen_forward_passes_total")
        tokens = drafting.figure("mlxgen_completion_tokens_total")
        assert draft == "ngram" or passes < 0.6 * tokens


def test_a_draft_that_cannot_be_loaded_is_refused_at_the_start() -> None:
    server = Running("--draft-model", "./not/here")
    try:
        assert server.end() == 2
        assert "there is no folder" in server.log[-1]
    finally:
        server.close()
