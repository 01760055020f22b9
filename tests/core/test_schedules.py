import math

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError
from refusals import refuses

from grpo_pipeline.core.schedules import Schedule, mixing_weights, value_at

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
    found = [value_at(schedule, step, len(wanted)) for step in range(len(wanted))]
    assert found == pytest.approx(wanted, abs=1e-15)
    assert len(wanted) == 1 or value_at(schedule, 99, len(wanted)) == wanted[-1]  # the end stays


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Schedule


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "linear", "start": 1.0}, "\n.*end must be given for a linear schedule, got none"),
        ({"kind": "constant", "start": 1.0, "end": 2.0}, "\n.*end must be absent from a constant schedule, got 2.0"),
        ({"start": math.nan}, "\n.*start must be finite, got nan"),
        ({"kind": "cosine", "start": 1.0, "end": math.inf}, "\n.*end must be finite, got inf"),
        ({"start": 1.0, "warmup_steps": -1}, "\n.*warmup_steps must be at least 0, got -1"),
        ({"start": 1.0, "warmup": 1}, ".warmup\n.*Unexpected keyword argument"),
    ],
)
def test_a_model_refuses_it_with_the_parameters_path(fields, message):
    with pytest.raises(ValidationError, match=f"weight{message}"):
        Params.model_validate({"weight": fields})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"kind": "linear", "start": 1, "end": 0.5, "warmup_steps": 2}, ("linear", 1.0, 0.5, 2)),
        ({"start": 0.3}, ("constant", 0.3, 0.3, 0)),
    ],
)
def test_a_model_reads_it_from_a_mapping(given, wanted):
    params = Params.model_validate({"weight": given})
    dumped = params.model_dump(mode="json")["weight"]
    assert dumped == dict(zip(("kind", "start", "end", "warmup_steps"), wanted, strict=True))
    assert type(dumped["start"]) is float
    assert Params.model_validate_json(params.model_dump_json()) == Params(weight=Schedule(**dumped | given)) == params


test_refuses = refuses(
    (lambda: Schedule(kind="step", start=1.0), "kind must be one of constant, linear, cosine, got step"),
    (lambda: value_at(Schedule(start=1.0), -1, 3), "at least 0, got -1"),
    *((lambda mu=mu: mixing_weights(mu), f"mu must be between 0 and 1, got {mu}") for mu in (-0.1, 1.1, math.nan)),
)


def test_mixing_weights_share_one():
    for mu in (0.0, 0.3, 1.0):
        weights = mixing_weights(mu)
        assert (weights.supervised, sum(weights)) == (mu, pytest.approx(1.0, abs=1e-15))
