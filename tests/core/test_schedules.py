import math

import pytest
from pydantic import ValidationError

from grpo_pipeline.core.schedules import Schedule, value_at


def values(schedule, total):
    return [value_at(schedule, step, total) for step in range(total)]


def test_constant():
    assert values(Schedule(start=0.3), 3) == [0.3, 0.3, 0.3]
    assert Schedule(start=0.3).end == 0.3


def test_linear_reaches_end_at_the_last_step_and_stays():
    schedule = Schedule(kind="linear", start=1.0, end=0.0)
    assert values(schedule, 5) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert value_at(schedule, 99, 5) == 0.0
    assert value_at(schedule, 0, 1) == 1.0


def test_cosine():
    got = values(Schedule(kind="cosine", start=2.0, end=1.0), 5)
    # 1 + (1 + cos(pi * x)) / 2 at x = 0, 1/4, 1/2, 3/4, 1
    half = math.sqrt(0.5)
    assert got == pytest.approx([2.0, 1 + (1 + half) / 2, 1.5, 1 + (1 - half) / 2, 1.0], abs=1e-15)


def test_warmup_rises_to_start_and_is_never_zero():
    got = values(Schedule(kind="linear", start=1.0, end=0.0, warmup_steps=3), 6)
    assert got == pytest.approx([0.25, 0.5, 0.75, 1.0, 0.5, 0.0], abs=1e-15)
    assert values(Schedule(start=4.0, warmup_steps=1), 3) == [2.0, 4.0, 4.0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "linear", "start": 1.0}, "end must be given for a linear schedule"),
        ({"kind": "constant", "start": 1.0, "end": 2.0}, "end must be absent from a constant schedule, got 2.0"),
        ({"kind": "step", "start": 1.0}, "'constant', 'linear' or 'cosine'"),
        ({"start": math.nan}, "finite"),
        ({"start": 1.0, "warmup_steps": -1}, "greater than or equal to 0"),
        ({"start": 1.0, "warmup": 1}, "Extra inputs"),
        ({"kind": "linear", "end": 1.0}, "start"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValidationError, match=message):
        Schedule(**fields)


def test_refuses_a_negative_step():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        value_at(Schedule(start=1.0), -1, 3)
