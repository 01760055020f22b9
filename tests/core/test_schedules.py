import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_pipeline.core.schedules import Schedule, mixing_weights, value_at


def values(schedule, total):
    return [value_at(schedule, step, total) for step in range(total)]


HALF = math.sqrt(0.5)


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        (Schedule(start=0.3), [0.3, 0.3, 0.3]),
        (Schedule(kind="linear", start=1.0, end=0.0), [1.0, 0.75, 0.5, 0.25, 0.0]),
        (Schedule(kind="linear", start=1.0, end=0.0), [1.0]),
        # 1 + (1 + cos(pi * x)) / 2 at x = 0, 1/4, 1/2, 3/4, 1
        (Schedule(kind="cosine", start=2.0, end=1.0), [2.0, 1 + (1 + HALF) / 2, 1.5, 1 + (1 - HALF) / 2, 1.0]),
        # The warm-up rises to the start and is never 0.
        (Schedule(kind="linear", start=1.0, end=0.0, warmup_steps=3), [0.25, 0.5, 0.75, 1.0, 0.5, 0.0]),
        (Schedule(start=4.0, warmup_steps=1), [2.0, 4.0, 4.0]),
    ],
)
def test_golden_values(schedule, wanted):
    assert values(schedule, len(wanted)) == pytest.approx(wanted, abs=1e-15)
    if schedule.kind != "constant" and len(wanted) > 1:
        assert value_at(schedule, 99, len(wanted)) == wanted[-1]  # the end stays


REFUSED = [
    ({"kind": "linear", "start": 1.0}, "end must be given for a linear schedule, got none"),
    ({"kind": "constant", "start": 1.0, "end": 2.0}, "end must be absent from a constant schedule, got 2.0"),
    ({"start": math.nan}, "start must be finite, got nan"),
    ({"kind": "cosine", "start": 1.0, "end": math.inf}, "end must be finite, got inf"),
    ({"start": 1.0, "warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
]


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Schedule


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *[(fields, rf"weight\n.*{message}") for fields, message in REFUSED],
        ({"start": 1.0, "warmup": 1}, r"weight.warmup\n.*Unexpected keyword argument"),
    ],
)
def test_a_model_refuses_it_with_the_parameters_path(fields, message):
    with pytest.raises(ValidationError, match=message):
        Params.model_validate({"weight": fields})


def test_a_model_reads_it_from_a_mapping():
    params = Params.model_validate({"weight": {"kind": "linear", "start": 1, "end": 0.5, "warmup_steps": 2}})
    assert params.weight == Schedule(kind="linear", start=1.0, end=0.5, warmup_steps=2)
    dumped = params.model_dump(mode="json")
    assert dumped == {"weight": {"kind": "linear", "start": 1.0, "end": 0.5, "warmup_steps": 2}}
    assert type(dumped["weight"]["start"]) is float
    assert Params.model_validate(dumped) == params
    constant = Params.model_validate({"weight": {"start": 0.3}})
    assert constant.model_dump(mode="json") == {"weight": {"kind": "constant", "start": 0.3, "end": 0.3, "warmup_steps": 0}}
    assert Params.model_validate_json(constant.model_dump_json()) == constant


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Schedule(kind="step", start=1.0), "kind must be one of constant, linear, cosine, got step"),
        (lambda: value_at(Schedule(start=1.0), -1, 3), "at least 0, got -1"),
        (lambda: mixing_weights(-0.1), "mu must be between 0 and 1, got -0.1"),
        (lambda: mixing_weights(1.1), "mu must be between 0 and 1, got 1.1"),
        (lambda: mixing_weights(math.nan), "mu must be between 0 and 1, got nan"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@given(st.floats(0, 1))
def test_mixing_weights_share_one(mu):
    weights = mixing_weights(mu)
    assert weights.supervised == mu
    assert sum(weights) == pytest.approx(1.0, abs=1e-15)
