"""Check what parameters of rewards may be: limits met exactly, names and weights."""

import math
from typing import Any, ClassVar

import pytest
from pydantic import ValidationError
from refusals import refuses

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.rewards.params import MeasuredReward, PoolParams

POOL: dict[str, Any] = {"workers": 0, "timeout_seconds": 0.1, "chunk_size": 1, "cache_size": 0}
OWN = {"function": "tiny_rewards:scripted", "weight": 0.1}


class Reward(MeasuredReward):
    """Two terms, of which one is measured with an option."""

    class Longest(Weighed):
        """A term with an option."""

        seconds: float

    functions: ClassVar = {"long": "tiny_rewards:slow"}
    short: Weighed | None = None
    long: Longest | None = None


test_weights_that_weigh_nothing_or_too_much_are_refused = refuses(
    ({"short": {"weight": math.inf}}, "short.weight"),
    ({"short": {"weight": math.nan}}, "short.weight"),
    ({"short": {"weight": -0.5}}, "short.weight"),
    ({"short": {"weight": 0.0}}, "write null for the whole part"),
    ({"short": None}, "a reward must have a term, got none"),
    ({"own": {"mine": None}}, "a reward must have a term, got none"),
    ({"other": {"weight": 1.0}}, "other"),
    by=lambda **terms: Reward(**terms),
)


def test_terms_are_added_up_in_the_order_of_the_task_and_then_the_users() -> None:
    given = {"own": {"mine": OWN, "gone": None}, "long": {"weight": 0.5, "seconds": 2.0}, "short": {"weight": 1.0}}
    found = Reward.model_validate(given)
    assert [*found.weights.items()] == [("short", 1.0), ("long", 0.5), ("mine", 0.1)]
    options = {name: (measure.function, dict(measure.options)) for name, measure in found.measures.items()}
    assert options == {"long": ("tiny_rewards:slow", {"seconds": 2.0}), "mine": ("tiny_rewards:scripted", {})}
    assert [*found.own_measures] == ["mine"]
    assert Reward.model_validate({"own": {"mine": OWN}}).all_weights == {"mine": 0.1, "short": 0.0, "long": 0.0}


@pytest.mark.parametrize(("name", "is_taken"), [("fluency", False), ("short", True), ("two words", True), ("own_1", False)])
def test_a_part_of_ones_own_has_a_name_of_its_own(name: str, is_taken: bool) -> None:
    if is_taken:
        with pytest.raises(ValueError, match=name):
            Reward.model_validate({"own": {name: OWN}})
    else:
        assert Reward.model_validate({"own": {name: OWN}}).weights == {name: 0.1}


@pytest.mark.parametrize("failure", ["exclude", "stop", 0.0, -1.5])
def test_a_failure_is_left_out_stops_or_is_a_number(failure: Any) -> None:
    assert PoolParams(**POOL, failure=failure).failure == failure


@pytest.mark.parametrize("failure", ["penalty", None, -math.inf, math.nan, {"rule": "exclude", "penalty": 0.0}])
def test_a_failure_is_nothing_else(failure: Any) -> None:
    with pytest.raises(ValidationError, match="failure"):
        PoolParams(**POOL, failure=failure)


def test_a_function_without_a_weight_is_not_even_imported() -> None:
    assert Reward.model_validate({"short": {"weight": 1.0}, "own": {"off": None}}).own == {}
    for weight, refused in ((0.0, "weight must be positive"), (0.1, "no_such_module")):
        with pytest.raises(ValidationError, match=refused):
            Reward.model_validate({"own": {"off": {"function": "no_such_module:f", "weight": weight}}})


@pytest.mark.parametrize(("name", "below"), [("workers", -1), ("chunk_size", 0), ("cache_size", -1), ("timeout_seconds", 0.0)])
def test_a_pool_has_its_least_numbers(name: str, below: float) -> None:
    PoolParams(**POOL)
    with pytest.raises(ValidationError, match=name):
        PoolParams(**POOL | {name: below})
