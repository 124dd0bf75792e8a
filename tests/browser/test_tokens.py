"""The token view: odds, marks, alternatives, branches."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest

from .driving import FACT, GREEDY, PERSON, RECORD, Chat, told


@pytest.mark.slow
def test_tokens_are_tinted_by_their_probability_and_say_it(chat: Chat) -> None:
    odds = [0.95, 0.8, 0.5, 0.2, 0.05, 0.001]
    events = [told(f" w{k}", index=k, logprob=math.log(share)) for k, share in enumerate(odds)]
    chat.answered(*events, tokens=True)
    tints = set()
    for k, share in enumerate(odds):
        token = chat.token(k)
        label = token.get_attribute("aria-label") or ""
        assert label.startswith(f"“w{k}”, {share * 100:.1f}"[:8])
        style = "t => getComputedStyle(t).backgroundColor + getComputedStyle(t).textDecorationStyle"
        tints.add(token.evaluate(style))
    assert len(tints) == len(odds)


def test_how_a_token_came_about_is_marked_and_said(chat: Chat) -> None:
    kinds: list[tuple[dict[str, object], str, str]] = [
        ({"forced": True}, "forced", "forced: the format left no other token"),
        (
            {"from_draft": True, "drafter": "text"},
            "drafted",
            "drafted from earlier text and accepted",
        ),
        ({"from_draft": True, "drafter": "head"}, "drafted", "drafted by the model's own head and"),
        ({"from_draft": True, "drafter": "model"}, "drafted", "drafted by a draft model and"),
        ({"from_draft": True, "drafter": "new"}, "drafted", "drafted and accepted by the model"),
        ({"attempts": 2}, "rejected", "drawn again 2 times because earlier draws were rejected"),
        ({"part": None}, "outside", "not part of the answer"),
    ]
    events = [told(f" {name}", index=k, **about) for k, (about, name, _) in enumerate(kinds)]
    chat.answered(*events, tokens=True)
    for k, (_, name, words) in enumerate(kinds):
        assert name in (chat.token(k).get_attribute("class") or "").split()
        chat.token(k).click()
        assert words in chat.panel.inner_text()
        chat.page.keyboard.press("Escape")


def test_an_alternative_under_a_schema_still_gives_valid_json_and_others_are_crossed_out(
    chat: Chat,
) -> None:
    before = chat.extract(tokens=True)
    first = json.loads(before)
    chat.token(1).click()
    item = chat.alternative("item")
    assert item.is_disabled() and "not allowed here" in (item.get_attribute("aria-label") or "")
    item.evaluate("button => button.click()")
    assert chat.answer == before
    chat.page.keyboard.press("Escape")
    chat.take(4, "E")
    chat.until(lambda: chat.answer != json.dumps(first))
    chat.wait_done()
    record = json.loads(chat.answer)
    jsonschema.validate(record, PERSON)
    assert record["name"].startswith("E")
    assert record != first
    assert chat.token(4).get_attribute("aria-label") == chat.focused
    assert "chosen by hand" in chat.focused
    assert "from the cache" in chat.answers.last.inner_text()
    branch = chat.answer
    body = chat.asking(lambda: chat.say(f"{RECORD} Again."))  # the branch goes on
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    assert body["messages"][1]["content"] == branch
    chat.answers.nth(1).wait_for()
    chat.wait_done()
    jsonschema.validate(json.loads(chat.answer), PERSON)


@pytest.mark.slow
def test_the_end_can_be_chosen_where_the_form_lets_the_text_end(chat: Chat) -> None:
    chat.ask(FACT, GREEDY | {"Alternatives to request": "20"})
    chat.show_tokens()
    chat.take(12, "<|im_end|>")
    chat.until(lambda: chat.answer.startswith("The capital of France is Paris<|im_end|>"))
    chat.press("Tokens")
    assert chat.answer == "The capital of France is Paris"
    chat.press("New conversation")
    form = r"The capital of France is [A-Z][a-z]+\."
    more = {"Regular expression": form, "Alternatives to request": "20"}
    before = chat.ask(FACT, GREEDY | {"The answer must be": "regex"} | more)
    chat.show_tokens()
    chat.token(12).click()
    assert chat.alternative("<|im_end|>").is_disabled()
    chat.type_instead("<|im_end|>")
    sentence = "The regular expression does not let the answer end here."
    chat.panel.get_by_text(sentence).wait_for()
    assert chat.answer == before


@pytest.mark.slow
def test_choosing_the_same_again_leads_to_the_branch_that_is_there(chat: Chat) -> None:
    first = chat.extract(tokens=True)
    chat.take(4, "E")
    chat.other_version()
    second = chat.answer
    chat.take(4, "M")
    chat.page.get_by_text("1 of 2").wait_for()
    assert chat.answer == first
    chat.token(4).click()
    assert "has a branch" in chat.alternative("E").inner_text()
    chat.alternative("E").click()
    chat.page.get_by_text("2 of 2").wait_for()
    assert chat.answer == second
    chat.press("From here")
    chat.page.get_by_text("It came out the same").wait_for()
    assert chat.answer == second and chat.page.get_by_text("2 of 2").count() == 1
    chat.press("Try again")
    chat.until(lambda: chat.answer == first)
    chat.page.get_by_text("1 of 2").wait_for()


@pytest.mark.slow
def test_branches_of_branches_are_walked_listed_and_compared(chat: Chat) -> None:
    first = chat.extract(tokens=True)
    for index, piece, version in ((4, "E", 2), (13, "6", 3)):
        chat.take(index, piece)
        chat.page.get_by_text(f"{version} of {version}").wait_for()
        chat.wait_done()
    third = json.loads(chat.answer)
    assert (third["name"][0], str(third["age"])[:2]) == ("E", "36")
    chat.page.get_by_text("All 3 versions of this answer").click()
    assert chat.page.locator(".tree .branch").count() == 3
    assert chat.page.locator(".tree ul ul ul .branch").count() == 1
    chat.press("Compare")
    dialog = chat.page.get_by_role("dialog", name="Two versions side by side")
    assert "The first 13 tokens are the same." in dialog.inner_text()
    left = dialog.get_by_label("Left version")
    left.select_option(index=0)
    assert "The first 4 tokens are the same." in dialog.inner_text()
    assert dialog.get_by_label("Left text").inner_text() == first
    dialog.get_by_role("button", name="Continue with this one").first.click()
    assert chat.answer == first
    chat.page.get_by_text("1 of 3").wait_for()
    chat.page.get_by_role("button", name="Previous version").last.click()
    assert json.loads(chat.answer) == third


@pytest.mark.slow
def test_a_branch_within_the_thoughts_has_their_whole_text(chat: Chat) -> None:
    chat.set({"Temperature": "0", "Thinking": "on", "Alternatives to request": "20"})
    chat.ask("What is 34 + 28?")
    chat.answers.last.get_by_text("Thoughts").click()
    chat.show_tokens()
    chat.take(9, "1")
    chat.other_version()
    chat.press("Tokens")
    chat.answers.last.locator(".reasoning > div > *").first.wait_for()  # still unfolded
    thoughts = chat.answers.last.locator(".reasoning > div").inner_text()
    assert thoughts.startswith("4 + 8 = 11, carry 1.\n")
    assert "think" not in thoughts + chat.answer
    assert chat.answer.startswith("34 + 28 = ")


def test_characters_of_several_tokens_appear_once_and_whole(chat: Chat) -> None:
    text = chat.ask("How do you say hello in Chinese?", GREEDY)
    assert text == "The Chinese word for hello is 你好."
    chat.show_tokens()
    assert chat.answer == f"{text}<|im_end|>"
    whole = chat.answers.last.locator(".character").first
    assert whole.locator(".whole").text_content() == "你"  # also where it is not drawn yet
    parts = whole.locator(".token")
    assert parts.count() > 1
    for part in parts.all():
        assert "part of a character" in (part.get_attribute("aria-label") or "")
    parts.first.click()
    chat.page.keyboard.press("Escape")
    chat.page.keyboard.press("ArrowRight")
    assert chat.focused == parts.nth(1).get_attribute("aria-label")
    chat.page.keyboard.press("Enter")
    assert chat.panel.is_visible()
