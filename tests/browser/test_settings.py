"""Settings, presets, and the figures of an answer, as the page's modules compute them."""

from __future__ import annotations

from typing import Any

import pytest

from .driving import Chat
from .test_modules import call

pytestmark = pytest.mark.slow

TIMINGS = {
    "cache_n": 800,
    "prompt_n": 400,
    "prompt_ms": 1200.0,
    "queued_ms": 300.0,
    "predicted_n": 36,
    "predicted_ms": 100.0,
    "predicted_per_second": 350.0,
    "draft_n": 30,
    "draft_n_accepted": 21,
    "drafts": {
        "text": {"draft_n": 20, "draft_n_accepted": 15},
        "head": {"draft_n": 10, "draft_n_accepted": 6},
    },
}


def taken(tab: Chat, timings: dict[str, Any], stats: dict[str, Any]) -> Any:
    """The stats with what an event says."""
    script = """([stats, timings]) => import("/page/figures.js").then(({ takeTimings }) => {
      takeTimings(stats, timings);
      return stats;
    })"""
    return tab.page.evaluate(script, [stats, timings])


def test_the_figures_of_an_answer_are_the_servers(tab: Chat) -> None:
    stats = taken(tab, TIMINGS, {"tokens": 36, "read": 1200, "queue": None})
    assert call(tab, "figures", "statsOf", {"stats": stats, "finish": "length"}) == (
        "36 tokens · 350 tokens/s · first token after 1.5 s · "
        "800 of 1,200 prompt tokens from the cache · cut off at the token limit"
    )
    assert call(tab, "figures", "draftsOf", stats) == (
        "30 tokens drafted, 21 stood (70 %): from earlier text 15/20, by the model's own head 6/10"
    )
    short = taken(tab, TIMINGS | {"predicted_ms": 5.0, "draft_n": 0}, {"tokens": 2})
    assert "speed" not in short and call(tab, "figures", "draftsOf", short) == ""


@pytest.mark.parametrize(
    ("stats", "said"),
    [
        (None, "Waiting for the first token …"),
        ({"queue": 3, "prompt": 9, "read": 0}, "Waiting for a place: 3 before it"),
        ({"queue": 0, "prompt": 9, "read": 0}, "Waiting for a place: next in line"),
        (
            {"queue": None, "prompt": 8000, "read": 1200, "cached": 800},
            "Reading the prompt: 1,200 of 8,000, 800 from the cache",
        ),
        ({"prompt": 9, "read": 9, "cached": 0}, "Waiting for the first token …"),
    ],
)
def test_what_an_answer_waits_for_is_said(
    tab: Chat, stats: dict[str, Any] | None, said: str
) -> None:
    assert call(tab, "figures", "waitingOf", stats) == said


def defaults(tab: Chat, **more: str) -> dict[str, str]:
    found = tab.page.evaluate('import("/page/settings.js").then((m) => ({ ...m.DEFAULTS }))')
    return {**found, **more}


def test_a_summary_has_all_that_differs_from_the_defaults(tab: Chat) -> None:
    def summary(**more: str) -> Any:
        return call(tab, "settings", "summaryOf", defaults(tab, **more))

    assert summary() == "" == summary(schema="{}", model="other")
    given = {"system": "x", "form": "schema", "top_p": "0.9", "stop": "a\n\nb", "tools": "[]"}
    assert summary(**given, thinking="off", banned_strings="c", alternatives="3") == (
        "In force: system prompt, thinking off, JSON schema, top p 0.9, 2 stop strings, "
        "1 banned string, tools, alternatives to request 3."
    )


def test_a_preset_changes_what_it_names_and_can_be_kept_renamed_and_deleted(chat: Chat) -> None:
    def named() -> list[str]:
        return [preset["name"] for preset in call(chat, "presets", "presets")]

    def preset(name: str) -> Any:
        return next(p for p in call(chat, "presets", "presets") if p["name"] == name)

    def problem(*names: str) -> Any:
        return call(chat, "presets", "problemOf", *names)

    own = defaults(chat, temperature="0.9", system="Be brief.", model="other")
    precise = call(chat, "presets", "withPreset", own, preset("Precise"))
    assert precise == own | {"temperature": "0"}
    assert call(chat, "presets", "isInForce", preset("Precise"), precise)
    built_in = named()
    call(chat, "presets", "savePreset", " Mine ", own)
    assert named() == [*built_in, "Mine"] and "model" not in preset("Mine")["settings"]
    again = call(chat, "presets", "withPreset", defaults(chat, model="a"), preset("Mine"))
    assert again == own | {"model": "a"}
    chat.reload()
    call(chat, "presets", "renamePreset", "Mine", "Ours")
    assert named() == [*built_in, "Ours"] and problem("Ours") == ""
    assert "already" in problem("Ours", "Mine") and "built in" in problem("Precise")
    assert problem("  ") != ""
    found = [{"name": "New", "settings": {"top_k": "3", "x": "y", "seed": 3}}, {"name": 3}, None]
    assert call(chat, "presets", "addPresets", found) == 1
    assert preset("New")["settings"] == {"top_k": "3"}
    call(chat, "presets", "removePreset", "Ours")
    assert named() == [*built_in, "New"]
