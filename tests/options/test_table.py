"""The table of options, and everything that is made from it."""

from __future__ import annotations

import inspect
import math
import pydoc
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlxgen
from mlxgen.engine import Options
from mlxgen.errors import OptionError
from mlxgen.options import table as written
from mlxgen.options.table import OPTIONS, SamplingOptions, check_together, checked
from mlxgen.sampling import CANDIDATES, MAX_TEMPERATURE, SamplingSettings
from mlxgen.server.openai import ChatRequest

from ..effort import table

ROOT = Path(__file__).parent.parent.parent
TAKE_OPTIONS = (
    mlxgen.LanguageModel.stream,
    mlxgen.LanguageModel.generate,
    mlxgen.LanguageModel.chat,
    mlxgen.LanguageModel.batch,
    mlxgen.LanguageModel.control,
    mlxgen.Session.__init__,
)
CASES = table("wrong_options")
"""The values that are ``wrong`` for an option, and what a message ``says``, in Python."""


def python(written: str) -> Any:
    return eval(written, {"math": math, "MAX_TEMPERATURE": MAX_TEMPERATURE})


def test_a_value_that_is_not_allowed_is_refused_with_what_is() -> None:
    wrong = {case["option"]: python(case["wrong"]) for case in CASES if "option" in case}
    assert wrong.keys() == OPTIONS.keys()
    numbers = {*SamplingOptions.__annotations__, "top_logprobs"}
    for name, option in OPTIONS.items():
        more = [True, "0.5", math.nan, math.inf, -math.inf, [1], 1j] if name in numbers else []
        for value in [*wrong[name], *more]:
            with pytest.raises(OptionError) as caught:
                checked({name: value})
            assert caught.value.field == name
            assert str(caught.value).startswith(f"{name}: expected {option.rule.allowed}, got ")


def test_a_message_says_what_was_expected_and_what_came() -> None:
    for case in CASES:
        if "says" in case:
            with pytest.raises(OptionError, match=re.escape(case["says"])) as caught:
                checked(python(case["given"]))
            assert len(str(caught.value)) < 600


def test_the_limits_of_every_range_are_allowed() -> None:
    for name, option in OPTIONS.items():
        for value in (option.rule.low, option.rule.high):
            if value is not None:
                assert checked({name: value})[name] == value
    assert checked({"top_k": 10**30})["top_k"] == 10**30
    assert checked({"logit_bias": {0: -1e9, 1: 1e9}})["logit_bias"] == {0: -1e9, 1: 1e9}


def test_numbers_of_numpy_are_numbers_and_a_whole_float_is_a_seed() -> None:
    biases = {np.int32(4): np.float64(1.5)}
    values = checked(
        {"temperature": np.float32(0.5), "top_k": np.int64(3), "logit_bias": biases, "seed": 5.0}
    )
    assert (values["temperature"], values["top_k"], values["seed"]) == (0.5, 3, 5)
    assert [type(values[name]) for name in ("temperature", "top_k", "seed")] == [float, int, int]
    assert values["logit_bias"] == {4: 1.5}


def test_options_are_values_and_one_of_a_kind_is_a_list_of_one() -> None:
    biases, stops = {1: 2.0}, ["a"]
    options = Options.of({"logit_bias": biases, "stop": stops})
    biases[1] = 3.0
    stops.append("b")
    assert (options.sampling.logit_bias, options.stop) == ({1: 2.0}, ("a",))
    for name, one in (("stop", "ab"), ("banned", "ab"), ("banned", re.compile("a|b"))):
        assert getattr(Options.of({name: one}), name) == (one,)


def test_none_is_the_default_of_every_option_but_max_tokens() -> None:
    assert checked(dict.fromkeys(OPTIONS)) == checked({}) | {"max_tokens": None}


def test_options_that_exclude_one_another_are_refused() -> None:
    for given, message in (
        ({"min_tokens": 10, "max_tokens": 9}, "min_tokens: 10 is more than max_tokens=9"),
        ({"prefix": [1, 2], "max_tokens": 2}, "prefix: its 2 tokens count as generated"),
        ({"close_json": True}, "close_json: needs a filter"),
    ):
        values = checked(given)  # each by itself is right
        with pytest.raises(OptionError, match=message):
            check_together(values)
        with pytest.raises(OptionError, match=message):
            Options.of(given)


def test_a_token_has_to_be_in_the_vocabulary() -> None:
    for given in (
        {"logit_bias": {99: 1.0}},
        {"stop_tokens": [3, [4, 99]]},
        {"prefix": [99]},
        {"prediction": [99]},
    ):
        options = Options.of(given)
        options.check_vocabulary(100)
        with pytest.raises(OptionError, match=r"expected token ids from 0 to 98, got 99"):
            options.check_vocabulary(99)


# ---- what is made from it ----


def test_every_option_is_in_the_values_of_the_engine_with_its_default() -> None:
    settings = {
        field.name: getattr(SamplingSettings(), field.name) for field in fields(SamplingSettings)
    }
    assert settings == {
        name: OPTIONS[name].rule.default for name in SamplingOptions.__annotations__
    }
    names = {field.name for field in fields(Options)} - {"sampling"}
    assert names == set(OPTIONS) - set(settings)
    assert all(getattr(Options.of({}), name) == OPTIONS[name].rule.default for name in names)
    assert OPTIONS["temperature"].rule.high == MAX_TEMPERATURE
    assert OPTIONS["top_candidates"].rule.high == CANDIDATES


def test_the_text_that_editors_show_ends_with_the_range_and_the_default() -> None:
    for option in OPTIONS.values():
        assert option.text.endswith(f". {option.rule}"), f"let it end with {option.rule}"
        assert "``" not in option.brief, "the first sentence is shown where nothing is marked up"


@pytest.mark.parametrize("function", TAKE_OPTIONS)
def test_help_reaches_every_option(function: Any) -> None:
    assert function.__annotations__["options"] == "Unpack[GenerationOptions]"
    shown = " ".join(pydoc.plain(pydoc.render_doc(function)).split())
    parameters = inspect.signature(function).parameters
    for name, option in OPTIONS.items():
        assert f"{name}: {option.text}" in shown
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == option.rule.default
    assert "options" not in parameters


def test_a_program_without_its_source_has_the_table_without_sentences(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getsource(module: object) -> str:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", getsource)
    rows = dict(written._rows())
    assert rows["min_p"].text == "A number from 0 to 1; default 0."
    assert rows["min_p"].rule == OPTIONS["min_p"].rule


def test_fields_of_requests_have_the_ranges_of_the_options() -> None:
    lenient = {"top_p": 0, "top_k": -1, "num_draft_tokens": 0, "max_tokens": -1}
    fields = ChatRequest.model_json_schema()["properties"]
    same = [name for name in OPTIONS if name in fields and OPTIONS[name].rule.low is not None]
    assert len(same) >= 13
    for name in same:
        rule, kind = OPTIONS[name].rule, fields[name]["anyOf"][0]
        assert kind.get("minimum") == lenient.get(name, rule.low), name
        assert kind.get("maximum") == rule.high, name
        assert OPTIONS[name].brief in fields[name]["description"] or name == "max_tokens"


def test_the_page_has_the_ranges_of_the_options() -> None:
    page = (ROOT / "mlxgen/server/page/settings.js").read_text(encoding="utf-8")
    shown = re.findall(r'number\("(\w+)",(?:[^{]|\n)*?\{([^}]*)\}', page)
    assert {"temperature", "top_p", "min_p", "max_tokens"} <= {name for name, _ in shown}
    for name, limits in shown:
        rule = OPTIONS[{"alternatives": "top_logprobs"}.get(name, name)].rule
        for key, limit in re.findall(r"(min|max): (\S+?)[,\s]", f"{limits} "):
            expected = rule.low if key == "min" else rule.high
            assert expected is not None and math.isclose(float(limit), expected, abs_tol=1e-8), name
