"""Check what parameters of rewards may be: limits met exactly, names and weights."""

import math
from typing import Any

import pytest
from pydantic import ValidationError
from refusals import refuses

from grpo_pipeline.rewards.params import FailureParams, OwnRewardParams, PoolParams, check_own_names, check_weights

POOL: dict[str, Any] = {"workers": 0, "timeout_seconds": 0.1, "chunk_size": 1, "cache_size": 0}


test_weights_that_weigh_nothing_or_too_much_are_refused = refuses(
    ({"a": 1.0, "b": math.inf}, "inf"),
    ({"a": 1.0, "b": math.nan}, "nan"),
    ({"a": 1.0, "b": -0.5}, "-0.5"),
    ({"a": 0.0, "b": 0.0}, "got"),
    by=lambda **weights: check_weights(weights),
)


def test_a_weight_of_zero_beside_another_is_one() -> None:
    check_weights({"a": 0.0, "b": 0.1})


@pytest.mark.parametrize(("name", "is_taken"), [("fluency", False), ("class", True), ("two words", True), ("own_1", False)])
def test_a_part_of_ones_own_has_a_name_of_its_own(name: str, is_taken: bool) -> None:
    if is_taken:
        with pytest.raises(ValueError, match=name):
            check_own_names([name], ["class", "heatmap"])
    else:
        check_own_names([name], ["class", "heatmap"])


@pytest.mark.parametrize("rule", ["exclude", "stop", "penalty"])
def test_a_penalty_is_given_where_one_is_paid_and_nowhere_else(rule: Any) -> None:
    for penalty in (None, 0.0, -1.5):
        if (penalty is None) == (rule == "penalty"):
            with pytest.raises(ValidationError):
                FailureParams(rule=rule, penalty=penalty)
        else:
            assert FailureParams(rule=rule, penalty=penalty).penalty == penalty


def test_a_function_without_a_weight_is_not_even_imported() -> None:
    OwnRewardParams(function="no_such_module:f", weight=0.0)
    with pytest.raises(ValidationError, match="no_such_module"):
        OwnRewardParams(function="no_such_module:f", weight=0.1)


@pytest.mark.parametrize(("name", "below"), [("workers", -1), ("chunk_size", 0), ("cache_size", -1), ("timeout_seconds", 0.0)])
def test_a_pool_has_its_least_numbers(name: str, below: float) -> None:
    PoolParams(**POOL)
    with pytest.raises(ValidationError, match=name):
        PoolParams(**POOL | {name: below})
