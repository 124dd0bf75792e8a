"""A text that is known to be likely is drafted from."""

from __future__ import annotations

import pytest

from mlxgen import OptionError, Session
from mlxgen.engine import Options
from tests.fakes.speaking import PROMPT, reciter

SAID = "abcdefghijklmnopqrst"
ASKED = [1, 2, 3, 4]


def test_a_predicted_text_is_drafted_from_its_first_token_on() -> None:
    speaker = reciter(list(SAID), prompt_length=len(ASKED))
    alone = speaker.lm.generate(ASKED, draft="ngram")
    assert alone.usage.accepted_draft_tokens < 3
    for prediction in (SAID, speaker.tokens(list(SAID))):
        fresh = reciter(list(SAID), prompt_length=len(ASKED)).lm
        drafted = fresh.generate(ASKED, draft="ngram", prediction=prediction)
        assert (drafted.tokens, drafted.text) == (alone.tokens, SAID)
        assert drafted.chunks[1].from_draft  # the first one is that of the prompt's pass
        assert drafted.usage.accepted_draft_tokens > 0.7 * len(SAID)


@pytest.mark.parametrize("draft", ["auto", "ngram", "off"])
def test_a_wrong_prediction_changes_no_text(draft: str) -> None:
    result = reciter(list(SAID)).lm.generate(
        PROMPT, draft=draft, prediction="abcxyzabcxyz" + SAID[5:]
    )
    assert result.text == SAID


def test_what_does_not_run_the_model_refuses_a_prediction() -> None:
    speaker = reciter(list(SAID))
    with pytest.raises(OptionError, match=r"prediction: .*nothing can be drafted"):
        Session(speaker.tokenizer, prediction="a")
    assert Options.of({"prediction": None}).prediction == ()
