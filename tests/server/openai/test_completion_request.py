"""What completion requests become."""

from __future__ import annotations

from mlxgen.engine import Prompt
from mlxgen.filters import Regex
from mlxgen.sampling import derive_seed
from mlxgen.server.completions import DEFAULT_TOKENS, parse_completion

from .kit import demo, refused


def test_a_prompt_is_text_or_tokens_and_no_chat() -> None:
    tokens = demo().vocabulary.encode("Once upon")
    text = parse_completion({"prompt": "Once upon"}, demo()).jobs[0]
    ids = parse_completion({"prompt": tokens}, demo()).jobs[0]
    assert text.prompt == ids.prompt == Prompt(tuple(tokens), opens_text=False)
    assert text.options.max_tokens == DEFAULT_TOKENS


def test_jobs_are_the_choices_of_each_prompt_in_turn() -> None:
    call = parse_completion({"prompt": [[5, 6], [7]], "n": 2, "seed": 3}, demo())
    assert [job.prompt.tokens for job in call.jobs] == [(5, 6), (5, 6), (7,), (7,)]
    seeds = [job.options.seed for job in call.jobs]
    assert seeds == [3, derive_seed(3, 1)] * 2


def test_too_many_rows_are_refused() -> None:
    body = {"prompt": ["a"] * 100, "n": 100}
    assert refused(parse_completion, body, demo()).param == "n"


def test_a_constraint_holds_from_the_first_character() -> None:
    call = parse_completion({"prompt": "a", "regex": "b+"}, demo())
    assert call.jobs[0].options.filters == (call.spec,) == (Regex("b+"),)


def test_an_echo_with_log_probabilities_has_the_prompt_scored() -> None:
    body = {"prompt": "a", "echo": True, "logprobs": 2}
    (job,) = parse_completion(body, demo()).jobs
    assert job.options.prompt_logprobs == 2
    assert refused(parse_completion, {**body, "heal": True}, demo()).param == "heal"
    (job,) = parse_completion({"prompt": "a", "echo": True}, demo()).jobs
    assert job.options.prompt_logprobs is None


def test_nothing_is_generated_only_where_the_prompt_is_echoed() -> None:
    body = {"prompt": "a", "max_tokens": 0}
    assert refused(parse_completion, body, demo()).param == "max_tokens"
    assert parse_completion({**body, "echo": True}, demo()).jobs


def test_the_last_tokens_of_a_prompt_are_kept() -> None:
    ids = list(range(70, 90))
    for most, kept in ((5, ids[-5:]), (50, ids), (-1, ids)):
        (job,) = parse_completion({"prompt": ids, "truncate_prompt_tokens": most}, demo()).jobs
        assert list(job.prompt.tokens) == kept
    long = {"prompt": [70] * 3000, "truncate_prompt_tokens": -1, "max_tokens": 20}
    (job,) = parse_completion(long, demo()).jobs
    assert len(job.prompt.tokens) == 2048 - 20


def test_chat_fields_are_unknown_to_completions() -> None:
    body = {"prompt": "a", "messages": []}
    error = refused(parse_completion, body, demo())
    assert error.param == "messages" and "/v1/chat/completions" in error.message


def test_a_lone_surrogate_in_a_prompt_is_refused() -> None:
    assert refused(parse_completion, {"prompt": ["a", "\ud800"]}, demo()).param == "prompt[1]"
