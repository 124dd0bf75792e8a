"""What the page computes without showing it: its modules, called in the browser."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from typing import Any

import pytest

from ..effort import tries
from .driving import Chat, told


def call(tab: Chat, module: str, name: str, *given: Any) -> Any:
    """A function of a module of the page."""
    script = "([module, name, given]) => import(module).then((m) => m[name](...given))"
    return tab.page.evaluate(script, [f"/page/{module}.js", name, list(given)])


def entry(token: Mapping[str, Any], start: int = 0, end: int | None = None) -> dict[str, Any]:
    """An entry of a part's log-probabilities: some bytes of a token."""
    return {**token, "bytes": token["bytes"][start:end]}


def test_empty_settings_show_what_the_server_does_then(chat: Chat) -> None:
    chat.press("Settings")
    temperature = chat.page.get_by_label("Temperature", exact=True)
    chat.until(lambda: temperature.get_attribute("placeholder") is not None)
    found = {}
    for label in ("Temperature", "Top p", "Repetition penalty", "Seed", "Maximum tokens"):
        field = chat.page.get_by_label(label, exact=True)
        found[label] = field.get_attribute("placeholder") or ""
        assert field.input_value() == ""
    assert found == {
        "Temperature": "0 (default)",
        "Top p": "1 (default)",
        "Repetition penalty": "1 (default)",
        "Seed": "another one each time (default)",
        "Maximum tokens": "as many as fit (default)",
    }


def test_the_bytes_of_each_part_are_found_in_the_lists_of_its_entries(tab: Chat) -> None:
    def token(text: str, part: str | None) -> dict[str, Any]:
        (one,) = told(text, part=part)["choices"][0]["tokens"]
        return dict(one)

    thought, both, mark, word, end = (
        token("so", "reasoning"),
        token(".</think>Hi", "reasoning"),
        token("\n", "mark"),
        token(" you", "content"),
        token("<|end|>", None),
    )
    choice = {
        "tokens": [thought, both, mark, word, end],
        "logprobs": {
            "content": [entry(both, 9), entry(word)],
            "reasoning_content": [entry(thought), entry(both, 0, 1)],
        },
    }
    records = call(tab, "records", "recordsOf", choice)
    assert call(tab, "records", "textOf", records, "reasoning") == "so."
    assert call(tab, "records", "textOf", records, "content") == "Hi you"


def test_a_record_has_what_is_not_allowed_and_what_was_rejected(tab: Chat) -> None:
    tops = [
        {"id": 1, "token": "a", "bytes": [97], "logprob": -0.1},
        {"id": 2, "token": "b", "bytes": [98], "logprob": -3.0, "allowed": False},
    ]
    no = {"id": 2, "token": "b", "bytes": [98], "reason": "draft", "by": "head"}
    hook = {"id": 3, "token": "?", "bytes": [226, 130], "reason": "hook", "by": None}
    choice = told("a", top_logprobs=tops, rejected=[no, hook])["choices"][0]
    (record,) = call(tab, "records", "recordsOf", choice)
    assert record["x"] == [2]
    assert record["j"] == [[2, "b", "draft", "head"], [3, [226, 130], "hook"]]
    (plain,) = call(tab, "records", "recordsOf", told("a")["choices"][0])
    assert not {"x", "j"} & set(plain)


def test_probabilities_that_differ_on_a_logarithmic_scale_have_levels_of_their_own(
    tab: Chat,
) -> None:
    shares = [0.99995, 0.9995, 0.99, 0.9, 0.5, 0.1, 0.01, 0.0001]
    levels = [call(tab, "records", "levelOf", round(math.log(share), 5)) for share in shares]
    assert levels == sorted(set(levels))
    heights = [call(tab, "token-strip", "heightOf", math.log(share)) for share in shares]
    assert heights == sorted(heights) and (round(heights[0], 9), heights[-1]) == (0, 1)


def test_a_column_of_the_strip_shows_the_least_likely_of_its_tokens(tab: Chat) -> None:
    columns = call(tab, "token-strip", "columnsOf", [-0.1, None, -2.0, -0.5, None, None, -1], 4)
    assert [column and column["logprob"] for column in columns] == [-0.1, -2.0, None, -1]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (" a\\nb", {"text": " a\nb"}),
        ("#12", {"ids": [12]}),
        (" #12, #7 ", {"ids": [12, 7]}),
        ("\\#12", {"text": "#12"}),
        ("#1st", {"text": "#1st"}),
        ("a\\\\n", {"text": "a\\n"}),
        ("", None),
    ],
)
def test_what_is_typed_is_text_or_the_ids_of_tokens(tab: Chat, typed: str, meant: Any) -> None:
    assert call(tab, "typed", "meantBy", typed) == meant


def test_white_space_before_a_mark_is_text_where_the_mark_was_replaced_by_hand(tab: Chat) -> None:
    texts = [("a", "reasoning"), ("\n", "mark"), ("b", "reasoning"), ("\n", "mark")]
    records = [{"i": 1, "b": text, "p": part} for text, part in texts]
    assert call(tab, "records", "textOf", records, "reasoning") == "ab"
    records[2]["h"] = 1
    assert call(tab, "records", "textOf", records, "reasoning") == "a\nb"


def test_a_character_that_is_not_whole_is_no_text_yet(tab: Chat) -> None:
    first, second = list("é".encode())
    record = {"i": 1, "b": [first], "p": "content"}
    assert call(tab, "records", "textOf", [record], "content") == ""
    whole = [record, {"i": 2, "b": [second], "p": "content"}]
    assert call(tab, "records", "textOf", whole, "content") == "é"


def test_empty_settings_send_nothing_and_others_what_they_say(tab: Chat) -> None:
    always = {
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "return_progress": True,
        "timings_per_token": True,
        "logprobs": True,
        "top_logprobs": 0,
    }
    assert call(tab, "settings", "bodyOf", {}) == always
    given = {"temperature": "0.5", "stop": "\\n\\n\n###\n", "form": "object", "thinking": "off"}
    given |= {"tools": json.dumps({"name": "f"}), "alternatives": "3", "schema": "{"}
    assert call(tab, "settings", "bodyOf", given) == always | {
        "temperature": 0.5,
        "stop": ["\n\n", "###"],
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": False},
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "top_logprobs": 3,
    }


def test_the_age_of_a_conversation_takes_a_few_letters(tab: Chat) -> None:
    noon = 1_794_830_400_000  # of a Monday, November 16, 2026, in UTC
    minute, hour, day = 60_000, 3_600_000, 86_400_000
    pasts = [-day, 0, 59_000, minute, 59 * minute, hour, 23 * hour, 2 * day, 14 * day, 700 * day]
    shown = [call(tab, "dates", "ago", noon - past, noon) for past in pasts]
    assert shown[:7] == ["now", "now", "now", "1 min", "59 min", "1 h", "23 h"]
    assert shown[7:] == ["Sat", "Nov 2", "Dec 2024"]
    assert call(tab, "dates", "ago", -1e300, noon) == call(tab, "dates", "fullDate", 1e300) == ""


def _records(chance: random.Random) -> list[dict[str, Any]]:
    """Records as the server may give them, and as a program that knows more fields might."""
    pieces = ["", " w", "\n", "é", "\ufeff", "\ud83d", [195], [255, 0]]

    def logprob() -> float | None:
        return chance.choice([None, 0, -0.00001, -chance.randrange(3_000_000) / 1e5, -1e300, 0.1])

    def record() -> dict[str, Any]:
        found: dict[str, Any] = {"i": chance.choice([0, 5, 2**40]), "b": chance.choice(pieces)}
        found |= {"p": chance.choice(["content", "mark", None]), "l": logprob()}
        if chance.random() < 0.5:
            more: list[list[Any]] = [[], [1, {"z": None}]]
            found["a"] = [
                [chance.randrange(9), chance.choice(pieces), logprob(), *chance.choice(more)]
                for _ in range(chance.randrange(4))
            ]
        for name in ("f", "n", "d", "h", "x", "c", "r", "later"):
            if chance.random() < 0.3:
                found[name] = chance.choice([1, "text", [1, 2], None, {"deep": [True]}])
        return found

    return [record() for _ in range(chance.randrange(12))]


def test_packed_records_are_the_same_when_they_are_unpacked(tab: Chat) -> None:
    lists = [_records(random.Random(seed)) for seed in range(tries(200))]
    script = """async (lists) => {
      const { pack, unpack } = await import("/page/packing.js");
      return lists.map((records) => {
        const { tokens, alternatives } = pack(records);
        const refused = [tokens.slice(0, -1), Uint8Array.of(...tokens, 0)].map((bytes) => {
          try { return unpack({ tokens: bytes }) } catch { return "refused" }
        });
        return [unpack({ tokens, alternatives }), unpack({ tokens }), ...refused];
      });
    }"""
    # As text, because half of a surrogate pair gets lost between the browser and here otherwise.
    packed = f"async (texts) => JSON.stringify(await ({script})(JSON.parse(texts)))"
    for records, found in zip(
        lists, json.loads(tab.page.evaluate(packed, json.dumps(lists))), strict=True
    ):
        thin = [{name: token[name] for name in token if name != "a"} for token in records]
        assert found == [records, thin, "refused", "refused"]


def test_an_answer_that_is_cut_back_counts_the_tokens_that_it_has_left(tab: Chat) -> None:
    script = """() => import("/page/conversation.js").then(({ cutBack }) => {
      const record = (i) => ({ i, b: "a", p: "content", l: -1 });
      const answer = (id, from, ids, stats) =>
        ({ id, from, tokens: ids.map(record), calls: [], stats });
      const first = answer("a", null, [1, 2, 3], { tokens: 3 });
      const stats = { tokens: 9, held: 4, speed: 50 };
      const node = answer("b", { node: "a", at: 2 }, [4, 5, 6, 7, 8], stats);
      cutBack({ nodes: { a: first, b: node } }, node, 4);
      return [node.tokens.length, node.stats, first.stats];
    })"""
    assert tab.page.evaluate(script) == [2, {"tokens": 2, "held": 0, "speed": 50}, {"tokens": 3}]


def test_questions_without_an_answer_are_asked_together(tab: Chat) -> None:
    def answer(parent: str, **more: Any) -> dict[str, Any]:
        blank = {"role": "assistant", "content": "", "reasoning": "", "calls": [], "finish": "stop"}
        return {"id": "z", "parent": parent, "settings": {"system": "S"}, **blank, **more}

    def said(*between: dict[str, Any]) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = [{"id": "u", "parent": "", "role": "user", "text": "One"}]
        for k, node in enumerate(between):
            nodes.append({**node, "id": f"n{k}", "parent": nodes[-1]["id"]})
        image = {"name": "i", "url": "data:image/png;base64,"}
        pictured = {"role": "user", "text": "Two", "images": [image]}
        nodes.append({**pictured, "id": "v", "parent": nodes[-1]["id"]})
        conversation = {"nodes": {node["id"]: node for node in nodes}, "chosen": {}}
        return list(call(tab, "conversation", "messagesFor", conversation, answer("v")))

    system = {"role": "system", "content": "S"}
    one = {"type": "text", "text": "One"}
    two = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}},
        {"type": "text", "text": "Two"},
    ]
    together = [system, {"role": "user", "content": [one, *two]}]
    for finish in ("error", "stopped"):
        assert said(answer("", finish=finish, reasoning="Hm")) == together
    kept = [
        system,
        {"role": "user", "content": "One"},
        {"role": "assistant", "content": "Half"},
        {"role": "user", "content": two},
    ]
    assert said(answer("", finish="error", content="Half")) == kept


PATH = [
    ("<think>", "mark"),
    ("So", "reasoning"),
    ("</think>", "mark"),
    ("\n\n", "mark"),
    *((piece, "content") for piece in ("The", " cap", "ital", " of", " Fran", "ce", ".")),
    ("<|end|>", None),
]


@pytest.mark.parametrize(
    ("text", "at", "rest"),
    [
        ("The capital of France.", 11, ""),
        ("The capital of France. Or", 11, " Or"),
        ("The capital", 7, ""),
        ("The capit", 5, " capit"),
        ("The capital of Francis.", 8, " Francis."),
        ("The capitol of", 5, " capitol of"),
        ("A capital", 4, "A capital"),
        ("", 4, ""),
    ],
)
def test_an_edit_keeps_the_tokens_before_the_word_that_it_changes(
    tab: Chat, text: str, at: int, rest: str
) -> None:
    path = [{"i": k, "b": piece, "p": part, "l": 0} for k, (piece, part) in enumerate(PATH)]
    plan = call(tab, "retyped", "planOf", path, text)
    assert (plan["at"], plan["rest"]) == (at, rest)


def test_tokens_that_an_edit_leaves_as_they_were_are_kept(tab: Chat) -> None:
    path = [{"i": k, "b": piece, "p": part, "l": 0} for k, (piece, part) in enumerate(PATH)]
    pieces = [{"id": 8, "piece": " Fran"}, {"id": 50, "piece": "cis"}, {"id": 10, "piece": "."}]
    found = call(tab, "retyped", "typedFrom", path, {"at": 8, "lead": 0}, pieces)
    assert found["at"] == 9
    assert [(one["b"], one["l"], one["h"]) for one in found["typed"]] == [
        ("cis", None, 2),
        (".", None, 2),
    ]
    both = {"i": 1, "b": ".</think>Hi", "p": "reasoning", "r": [46], "c": [72, 105]}
    plan = call(tab, "retyped", "planOf", [both], "Ho")
    assert plan == {"at": 0, "rest": ".</think>Ho", "lead": 9}
    pieces = [{"id": 1, "piece": ".</think"}, {"id": 2, "piece": ">Ho"}]
    typed = call(tab, "retyped", "typedFrom", [both], plan, pieces)["typed"]
    assert call(tab, "records", "textOf", typed, "content") == "Ho"
