from __future__ import annotations

import copy
import math
import pickle
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from mlxgen.errors import OptionError
from mlxgen.sampling import MAX_TEMPERATURE, SamplingSettings


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, MAX_TEMPERATURE + 1, -math.inf, 10**400]),
        ("top_p", [0, 0.0, -0.5, 1.01]),
        ("min_p", [-0.01, 1.01]),
        ("xtc_probability", [-0.01, 1.5]),
        ("xtc_threshold", [-0.01, 0.51, 0.9]),
        ("repetition_penalty", [0, -1.0, 1e7]),
        ("presence_penalty", [-2.01, 2.01]),
        ("frequency_penalty", [-2.01, 2.01]),
        ("top_k", [-1, 1.0, 0.5]),
        ("logit_bias", [[], {-1: 1.0}, {"5": 1.0}, {True: 1.0}, {1: 1e10}, {1: "a"}, {1: True}]),
    ],
)
def test_a_value_out_of_its_range_is_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(OptionError, match=field) as caught:
            SamplingSettings(**{field: value})
        assert caught.value.field == field


@pytest.mark.parametrize("field", SamplingSettings.__dataclass_fields__)
@pytest.mark.parametrize("value", [True, None, "0.5", math.nan, math.inf, -math.inf, [1], 1j])
def test_a_value_that_is_no_finite_number_is_refused(field: str, value: Any) -> None:
    with pytest.raises(OptionError, match=field):
        SamplingSettings(**{field: value})
    with pytest.raises(OptionError, match="logit_bias"):
        SamplingSettings(logit_bias={3: value})


def test_a_message_names_the_value_and_the_range() -> None:
    with pytest.raises(OptionError, match=r"xtc_threshold: 0.9 is out of range, give 0 to 0.5"):
        SamplingSettings(xtc_threshold=0.9)


def test_the_limits_of_every_range_are_allowed() -> None:
    SamplingSettings(
        temperature=MAX_TEMPERATURE,
        top_p=1,
        min_p=1,
        xtc_probability=1,
        xtc_threshold=0.5,
        repetition_penalty=1e-9,
        presence_penalty=-2,
        frequency_penalty=2,
        top_k=10**30,
        repetition_context_size=10**30,
        logit_bias={0: -1e9, 1: 1e9},
    )


def test_numbers_of_numpy_are_numbers() -> None:
    settings = SamplingSettings(
        temperature=np.float32(0.5),  # type: ignore[arg-type]
        top_k=np.int64(3),  # type: ignore[arg-type]
        logit_bias={np.int32(4): np.float64(1.5)},  # type: ignore[dict-item]
    )
    assert settings == SamplingSettings(temperature=0.5, top_k=3, logit_bias={4: 1.5})
    assert type(settings.top_k) is int


def test_settings_do_not_change_with_the_mapping_they_were_made_from() -> None:
    biases = {1: 2.0}
    settings = SamplingSettings(logit_bias=biases)
    biases[1] = 3.0
    assert settings.logit_bias == {1: 2.0}
    with pytest.raises(FrozenInstanceError):
        settings.top_k = 3  # type: ignore[misc]


def test_settings_are_values() -> None:
    settings = SamplingSettings(temperature=1, logit_bias={1: 2.0})
    for twin in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings)), replace(settings)):
        assert twin == settings
        assert hash(twin) == hash(settings)


def test_a_biased_token_has_to_be_in_the_vocabulary() -> None:
    settings = SamplingSettings(logit_bias={3: 1.0, 99: 1.0})
    settings.check_vocabulary(100)
    with pytest.raises(OptionError, match=r"logit_bias: token 99 .* 0 to 98"):
        settings.check_vocabulary(99)


def test_penalties_say_whether_counts_are_needed() -> None:
    assert not SamplingSettings(temperature=1, top_k=4).penalises
    assert SamplingSettings(repetition_penalty=1.1).penalises
    assert SamplingSettings(presence_penalty=-0.1).penalises
    assert SamplingSettings(frequency_penalty=0.1).penalises
