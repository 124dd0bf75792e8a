"""How fast an answer came: the rates that the usage of every API has, and the log."""

from __future__ import annotations

import re
from dataclasses import replace

from mlxgen.engine import DraftCount, Usage
from mlxgen.server.reply import timings

from .running import Running

USED = Usage(
    prompt_tokens=110,
    cached_tokens=10,
    completion_tokens=21,
    prompt_seconds=2.5,
    queued_seconds=0.5,
    generation_seconds=4.0,
)
NAMES = {
    "cache_n": 10,
    "prompt_n": 100,
    "prompt_ms": 2000.0,
    "prompt_per_token_ms": 20.0,
    "prompt_per_second": 50.0,
    "predicted_n": 21,
    "predicted_ms": 4000.0,
    "predicted_per_token_ms": 200.0,
    "predicted_per_second": 5.0,
}


def test_rates_count_what_was_run_and_no_time_in_the_queue() -> None:
    assert timings([USED]) == NAMES
    counts = {"text": DraftCount(6, 5)}
    used = Usage(drafted_tokens=6, accepted_draft_tokens=5, drafts=counts)
    both = {**counts, "model": DraftCount(2, 0)}
    drafted = timings([used, replace(used, drafted_tokens=8, drafts=both)])
    assert (drafted["draft_n"], drafted["draft_n_accepted"]) == (14, 10)
    assert drafted["drafts"] == {
        "text": {"draft_n": 12, "draft_n_accepted": 10},
        "model": {"draft_n": 2, "draft_n_accepted": 0},
    }
    assert drafted["prompt_per_second"] == drafted["predicted_per_second"] == 0.0


def test_loops_are_told_if_there_were_any() -> None:
    looped = replace(USED, loops=4, looped="again and ")
    assert timings([looped, replace(USED, loops=1)]).items() >= {
        ("loops", 5),
        ("looped", "again and "),
    }
    assert timings([USED]) == NAMES


def test_tokens_before_a_fork_are_counted_once() -> None:
    branch = replace(USED, cached_tokens=110, completion_tokens=26, forked_tokens=15)
    both = timings([USED, branch], given=1)
    assert both["prompt_n"] == NAMES["prompt_n"] + 1 + 1
    assert both["predicted_n"] == 20 + 11
    assert both["predicted_per_second"] == (20 + 11 - 2) / 4.0


def test_the_log_says_how_much_came_from_the_prefix_cache(server: Running) -> None:
    body = {"prompt": "The log of a server says it. " * 8, "max_tokens": 2, "ignore_eos": True}
    answers = [server.post("/v1/completions", body).json() for _ in range(2)]
    cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    line = re.compile(rf" id={answers[1]['id'].removeprefix('cmpl-')} .* cached={cached} ")
    server.wait_until(lambda: any(map(line.search, server.log)), "no such line")
