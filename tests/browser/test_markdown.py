"""Answers as Markdown: what is drawn, that streams leave it alone, and what is never done."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from .driving import DATA, Chat, box_of, event, read

# What a model may write, or be made to write, to run something, load something or leave the page.
HOSTILE = (DATA / "hostile.md").read_text(encoding="utf-8").rstrip("\n")
MARKS = (DATA / "marks.md").read_text(encoding="utf-8").rstrip("\n")


def answered(chat: Chat, text: str) -> None:
    chat.answered(event(text))


def seen(chat: Chat, script: str) -> Any:
    return chat.answers.last.locator(".content").evaluate(script)


def test_nothing_that_an_answer_says_runs_loads_or_leads_into_the_page(chat: Chat) -> None:
    refused: list[str] = []
    chat.page.on("console", lambda message: refused.append(message.text))
    answered(chat, HOSTILE)
    chat.answers.last.locator(".katex").first.wait_for()
    as_written = chat.answers.last.locator(".math[title]")
    chat.until(lambda: as_written.count() == 3)
    links = seen(chat, "e => [...e.querySelectorAll('a')].map(a => [a.href, a.target, a.rel])")
    outside = ["https://evil.invalid/", "https://evil.invalid/i.png"]
    assert links == [[url, "_blank", "noopener noreferrer"] for url in outside]
    tags = seen(chat, "e => [...new Set([...e.querySelectorAll('*')].map(n => n.localName))]")
    assert not {"img", "script", "iframe", "b", "style", "link", "object"} & set(tags)
    attributes = "e => [...e.querySelectorAll('*')].flatMap(n => n.getAttributeNames())"
    assert not [name for name in seen(chat, attributes) if name.startswith("on")]
    assert "<img src=x onerror=alert(1)>" in chat.answer
    assert refused == []  # the policy had nothing to refuse
    box = box_of(chat.answers.last)
    assert box["height"] < 2000
    chat.check_clean()


def test_an_answer_is_drawn_as_what_its_marks_mean(chat: Chat) -> None:
    answered(chat, MARKS)
    chat.answers.last.locator(".katex-display").nth(1).wait_for()
    chat.answers.last.locator(".hl-string").wait_for()
    find = "(e, query) => [...e.querySelectorAll(query)].map(n => n.textContent)"
    content = chat.answers.last.locator(".content")
    for query, texts in read("marks.json").items():
        assert content.evaluate(find, query) == texts, query
    boxes = seen(chat, "e => [...e.querySelectorAll('input')].map(b => [b.checked, b.disabled])")
    assert boxes == [[False, True], [True, True]]
    assert "$5 or $10" in content.inner_text()
    chat.page.reload()  # and so is one that was kept
    chat.answers.last.locator(".hl-string").wait_for()
    chat.press("Tokens")
    chat.until(lambda: chat.answers.last.locator(".content").count() == 0)


def test_an_answer_that_grows_keeps_what_is_drawn_and_ends_as_if_it_came_at_once(
    tab: Chat,
) -> None:
    script = """async ([text]) => {
      const { Blocks } = await import("/page/blocks.js");
      const { h, render } = await import("preact");
      const box = document.body.appendChild(document.createElement("div"));
      const show = (given, growing = true) => render(h(Blocks, { text: given, growing }), box);
      const first = text.indexOf("two") + 3;
      show(text.slice(0, first));
      const there = [...box.querySelectorAll("*")];
      const word = box.querySelector("strong").firstChild;
      getSelection().selectAllChildren(box.querySelector("li"));
      for (let end = first; end <= text.length; end += 1) {
        show(text.slice(0, end));
      }
      show(text, false);
      const kept = there.filter((one) => one.isConnected).length;
      const said = [kept, there.length, word.isConnected, String(getSelection()).trim()];
      const drawn = (part) => {
        const copy = part.cloneNode(true); // colours and formulas come later
        for (const code of copy.querySelectorAll("code")) code.textContent += "";
        for (const formula of copy.querySelectorAll(".math")) formula.replaceChildren();
        return copy.innerHTML;
      };
      const whole = document.createElement("div");
      render(h(Blocks, { text, growing: false }), whole);
      said.push(drawn(box) === drawn(whole));
      box.remove();
      return said;
    }"""
    kept, all_of_it, word, selected, same = tab.page.evaluate(script, [MARKS])
    assert (kept, word, selected, same) == (all_of_it, True, "one", True)


@pytest.mark.slow
def test_json_that_a_schema_asked_for_is_shown_as_it_is_in_colours(chat: Chat) -> None:
    chat.hold_to_schema()
    text = json.dumps({"name": "# **Maria**", "age": 34, "city": "$x$"})
    answered(chat, text)
    chat.answers.last.locator(".formed .hl-number", has_text="34").wait_for()
    assert chat.answer == text
    assert seen(chat, "e => [...e.querySelectorAll('strong, h3, .math')].length") == 0


def test_the_browser_itself_keeps_text_from_becoming_html_or_script(chat: Chat) -> None:
    write = "document.body.innerHTML = '<p>no</p>'"
    refused = f"() => {{ try {{ {write}; return '' }} catch (error) {{ return error.name }} }}"
    assert chat.page.evaluate(refused) == "TypeError"
    policy = chat.page.request.get(chat.url).headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    assert re.search("script-src 'self' 'sha256-[^' ]+';", policy)  # of the import map
