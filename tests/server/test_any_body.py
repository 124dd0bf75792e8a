"""Whatever is sent, by whichever API, can be asked for, or is an error that names its field."""

from __future__ import annotations

import copy
import json
import logging
import re
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mlxgen.errors import GrammarError
from mlxgen.server.ask import Ask
from mlxgen.server.bodies import read
from mlxgen.server.errors import RequestError
from mlxgen.server.openai import ChatRequest
from mlxgen.server.served_model import ServedModel

from ..effort import tries
from .apis import APIS, ENDPOINTS, Api
from .kit import HELLO, demo, model_of, templated
from .test_requests import body_of, lines

REQUESTS: dict[str, type[BaseModel]] = {
    api: ENDPOINTS[api].api.body for api in ("chat", "completions", "messages", "responses")
}
FIELDS = [
    pytest.param(api, field.alias or name, id=f"{api} {name}")
    for api, model in REQUESTS.items()
    for name, field in model.model_fields.items()
]
VALUES: list[Any] = [
    *(True, False, 0, -1, 7, 10**30, -0.5, 1.5, 1e300, float("nan"), float("inf")),
    *("", "7", "auto", "\x01", [], [0], ["a"], [[]], [None], [True], [1.5], [{}]),
    *({}, {"a": 1}, {"": None}, {"type": "nothing"}, {"1": "2"}),
]
CHECKED_FURTHER = (
    *("prompt", "input", "system", "suffix", "prefix_tokens", "continue_final_message"),
    *("add_generation_prompt", "chat_template_kwargs", "tool_choice", "choice", "close_json"),
    *("max_tokens", "min_tokens", "xtc_threshold", "logit_bias", "stop_token_ids", "top_logprobs"),
    *("program", "controller", "hooks", "check", "arguments"),
)
"""Each of these refuses some values of the right type, which the schema cannot say: tokens that are
not in the vocabulary, what needs another field, and names of what is not registered."""


def parse(api: str, body: Any, model: ServedModel | None = None) -> Ask:
    return ENDPOINTS[api].parse(body, model or demo())


def refusal(api: str, body: Any, model: ServedModel | None = None) -> RequestError | None:
    """Why a body is refused, if it is; otherwise it can be asked for, and fail."""
    try:
        ask = parse(api, body, model)
    except RequestError as error:
        assert 400 <= error.status < 500
        json.dumps(error.body(), allow_nan=False).encode()
        assert len(error.message.encode()) < 1000 and len(error.param or "") < 300
        return error
    assert ask.jobs
    json.dumps(ask.make_reply(ask, "1", 1).fail(ValueError())).encode()
    return None


@pytest.mark.parametrize(("api", "name"), FIELDS)
def test_a_value_of_the_wrong_type_is_refused_by_name_and_a_right_one_is_taken(
    api: str, name: str
) -> None:
    whole = REQUESTS[api].model_json_schema()
    schema = {**whole["properties"][name], "$defs": whole.get("$defs", {})}
    for value in VALUES:
        error = refusal(api, {**ENDPOINTS[api].plainest, name: value})
        finite = not {"NaN", "Infinity"} & {json.dumps(value)}
        right = finite and jsonschema.Draft202012Validator(schema).is_valid(value)
        assert right or error is not None, value
        if error is not None:
            assert not right or name in CHECKED_FURTHER, (value, error)
            param = error.param or ("" if finite else name)  # which is no JSON
            assert param == "prompt" or param.partition(".")[0].partition("[")[0] == name, value


@pytest.mark.parametrize(("api", "name"), FIELDS)
def test_null_means_default(api: str, name: str) -> None:
    plainest = ENDPOINTS[api].plainest
    field = next(f for n, f in REQUESTS[api].model_fields.items() if name in (n, f.alias))
    assert field.description
    if field.is_required():
        error = refusal(api, {**plainest, name: None})
        assert error is not None and error.param == name
    else:
        plain = {key: value for key, value in plainest.items() if key != name}
        assert parse(api, {**plain, name: None}).jobs == parse(api, plain).jobs


# ---- anything ------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2000)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["auto", "text", "function", "object", "\ud800", "\x00", "user", "a" * 2000]),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
ANY_API = st.sampled_from(sorted(ENDPOINTS))
KNOWN = {api: [body for line in lines(api) if (body := body_of(api, line))] for api in ENDPOINTS}


@st.composite
def spoiled(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A body of the tables with something else in one or two places, at any depth."""
    api = draw(ANY_API)
    body = copy.deepcopy(draw(st.sampled_from(KNOWN[api])))
    for _ in range(draw(st.integers(1, 2))):
        at: Any = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(at[key], (dict, list)) or draw(st.booleans()):
                at[key] = draw(JSON)
                break
            at = at[key]
    return api, body


@settings(max_examples=tries(600))
@given(spoiled())
def test_a_spoiled_body_is_answered(found: tuple[str, dict[str, Any]]) -> None:
    refusal(*found)


@settings(max_examples=tries(400))
@given(st.sampled_from(sorted(REQUESTS)), st.data())
def test_any_fields_are_answered(api: str, data: st.DataObject) -> None:
    names = st.sampled_from(sorted(REQUESTS[api].model_fields)) | st.text(max_size=6)
    fields = data.draw(st.dictionaries(names, JSON, max_size=5))
    refusal(api, {**ENDPOINTS[api].plainest, **fields})
    refusal(api, fields)


def refused_bytes(data: bytes) -> bool:
    try:
        read(data, ChatRequest)
    except RequestError as error:
        return error.status == 400 and error.code == "invalid_json"
    return False


NOT_JSON = (
    *(b"", b"   ", b"{", b"[1, 2]", b'"text"', b"null", b'{"a": 1,}', b"{'a': 1}"),
    *(b'{"a": 1} {"b": 2}', b'{"a": NaN}', b'{"a": [-Infinity]}', b'{"a": "\x00"}'),
    *(b'{"a": "\xff"}', b'\xff\xfe{\x00"\x00', b"\xef\xbb\xbf{}", b"[" * 100_000),
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
)


def test_what_is_no_strict_json_is_refused() -> None:
    assert all(map(refused_bytes, NOT_JSON))


@settings(max_examples=tries(400))
@given(st.binary(max_size=40), st.integers(0, 200), st.sampled_from(sorted(ENDPOINTS)))
def test_bytes_that_are_no_body_are_refused(some: bytes, at: int, api: str) -> None:
    data = json.dumps(dict(ENDPOINTS[api].plainest)).encode()
    for wrong in (some, data[: at % len(data)], data + some.strip() + b"x", b"[" + data):
        assert refused_bytes(wrong)
    mixed = data[: at % len(data)] + some + data[at % len(data) :]
    try:
        read(mixed, ENDPOINTS[api].api.body, set())
    except RequestError as error:
        assert error.status == 400


PIECES = st.sampled_from(["\0", "\ud83d", "\ude00", "\\", "\\u0000", "u0000", '"', "1e999", "é"])


@given(st.lists(PIECES | st.text(max_size=3), max_size=8))
def test_a_text_arrives_as_it_was_sent_but_for_what_is_no_text(pieces: list[str]) -> None:
    sent = "".join(pieces)
    whole = sent.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    body = {"messages": [{"role": "user", "content": sent}], "user": "\\ud800"}
    [message] = read(json.dumps(body).encode(), ChatRequest).request.messages
    assert message["content"] == whole.replace("\0", "\ufffd")
    try:
        stops = read(json.dumps({**body, "stop": ["x", sent]}).encode(), ChatRequest).request.stop
    except RequestError as error:
        assert "stop" in (error.param or "") and (whole != sent or "\0" in sent or not sent)
    else:
        assert stops == ["x", whole]


# ---- names and sizes -----------------------------------------------------------------------------


def test_an_unknown_field_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(RequestError, match="temperature"):
        ENDPOINTS["chat"].parse({**ENDPOINTS["chat"].plainest, "temprature": 1}, model_of("strict"))


def test_an_unknown_field_is_ignored_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    unknown = {"known"}
    body = {**ENDPOINTS["chat"].plainest, "temprature": 1, "enable_search": False}
    with caplog.at_level(logging.WARNING, "mlxgen.server"):
        for _ in range(3):
            ask = ENDPOINTS["chat"].parse(body, demo(), unknown)
            assert {"temprature", "enable_search"} <= set(ask.ignored)
    told = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [each["field"] for each in told] == ["temprature", "enable_search"]


@pytest.mark.parametrize("api", REQUESTS)
@pytest.mark.parametrize("name", ["temperature", "seed", "loops", "model", "thinking_budget"])
def test_a_huge_value_makes_no_huge_message(api: str, name: str) -> None:
    for value in ("x" * 10**6, ["y" * 10**6], {"z" * 10**6: 1}, int("9" * 4000)):
        error = refusal(api, {**ENDPOINTS[api].plainest, name: value})
        assert error or name in ("seed", "thinking_budget")


@pytest.mark.parametrize(
    "form",
    [{"regex": "(" * 5000 + "a" + ")" * 5000}, {"grammar": "start: " + "a" * 5000}],
    ids=["regex", "grammar"],
)
def test_a_huge_grammar_makes_no_huge_message(form: dict[str, str]) -> None:
    spec = parse("completions", {"prompt": "a", **form}).spec
    assert spec is not None
    with pytest.raises(GrammarError) as info:
        spec.bind(demo().vocabulary, demo().vocab_size)
    assert len(str(info.value)) < 1000


@pytest.mark.parametrize("api", sorted(ENDPOINTS.keys() - {"infill"}))
def test_clients_recognise_the_words_for_a_prompt_that_is_too_long(api: str) -> None:
    # litellm, langchain, Roo, and those that read the numbers out of vLLM's or OpenAI's message
    long, plainest = "word " * 3000, ENDPOINTS[api].plainest
    [field] = {"messages", "prompt", "input"} & plainest.keys()
    asked: Any = [{"role": "user", "content": long}] if field == "messages" else long
    error = refusal(api, {**plainest, field: asked})
    assert error is not None and "prompt is too long" in error.message
    assert "this model's maximum context length is 2048 tokens. However, your" in error.message
    assert re.search(r"resulted in \d+ tokens", error.message)


@pytest.mark.parametrize("api", APIS, ids=str)
def test_many_tools_and_long_names_are_taken(api: Api) -> None:
    names = ["f" * 256, *(f"mcp__server.tool-{i}" for i in range(300))]
    body = api.body(functions=[{"name": name, "description": "d"} for name in names])
    body["tool_choice"] = api.choice(names[0])
    ask = ENDPOINTS[api.name].parse(body, replace(demo(), max_context=1 << 20))
    prompt = demo().vocabulary.decode(ask.questions[0].prompt.tokens)
    assert all(name in prompt for name in (names[0], names[-1])) and ask.spec


def test_choices_share_the_prompt_and_draw_from_seeds_of_their_own() -> None:
    for api, more in (("chat", {}), ("completions", {"prompt": [[5, 6], [7]]})):
        jobs = parse(api, {**ENDPOINTS[api].plainest, "n": 3, "seed": 11, **more}).jobs
        prompts, options = zip(*jobs, strict=True)
        seeds = [each.seed for each in options]
        assert seeds[0] == 11 and len(set(seeds)) == 3 and seeds == seeds[:3] * (len(jobs) // 3)
        assert all(prompt is prompts[i - i % 3] for i, prompt in enumerate(prompts))
    assert prompts[-1].tokens == (7,)


@pytest.mark.slow
def test_a_template_that_does_not_end_is_stopped() -> None:
    model = templated(f"x{'{% for a in messages %}' * 4}{'{% endfor %}' * 4}")
    found = refusal("chat", {"messages": HELLO * 1000}, model)
    assert found is not None and (found.status, found.param) == (400, "messages")
