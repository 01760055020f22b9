import dataclasses
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, ValidationError

from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.schedules import MixingWeights, Schedule, mixing_weights, value_at


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


REFUSED = [
    ({"kind": "linear", "start": 1.0}, "end must be given for a linear schedule, got none"),
    ({"kind": "constant", "start": 1.0, "end": 2.0}, "end must be absent from a constant schedule, got 2.0"),
    ({"start": math.nan}, "start must be finite, got nan"),
    ({"kind": "cosine", "start": 1.0, "end": math.inf}, "end must be finite, got inf"),
    ({"start": 1.0, "warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
]


@pytest.mark.parametrize(
    ("fields", "message"), [*REFUSED, ({"kind": "step", "start": 1.0}, "kind must be one of constant, linear, cosine, got step")]
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Schedule(**fields)


class Params(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    weight: Schedule


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *[(fields, rf"weight\n.*{message}") for fields, message in REFUSED],
        ({"kind": "step", "start": 1.0}, r"weight.kind\n.*'constant', 'linear' or 'cosine'"),
        ({"start": 1.0, "warmup": 1}, r"weight.warmup\n.*Unexpected keyword argument"),
        ({"kind": "linear", "end": 1.0}, r"weight.start\n.*Field required"),
        ({"start": "high"}, r"weight.start\n.*valid number"),
        ({"start": 1.0, "end": None}, r"weight.end\n.*valid number"),
        ({"start": 1.0, "warmup_steps": 1.5}, r"weight.warmup_steps\n.*valid integer"),
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


@pytest.mark.parametrize("name", ["policy_weight", "entropy_weight"])
def test_the_models_of_core_hold_it(name):
    with pytest.raises(ValidationError, match=rf"{name}.strat\n.*Unexpected keyword argument"):
        AlgorithmParams.model_validate({name: {"start": 1.0, "strat": 1.0}})


def test_is_frozen_and_takes_names_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Schedule(start=1.0).start = 2.0
    with pytest.raises(TypeError, match="positional"):
        Schedule("linear", 1.0)
    with pytest.raises(TypeError, match="warmup"):
        Schedule(start=1.0, warmup=3)


def test_needs_neither_pydantic_nor_torch():
    code = """
import sys
sys.modules.update(pydantic=None, torch=None)
from grpo_pipeline.core.schedules import Schedule, value_at
print(value_at(Schedule(kind="linear", start=1.0, end=0.0), 1, 5))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == 0.75


def test_refuses_a_negative_step():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        value_at(Schedule(start=1.0), -1, 3)


@given(st.floats(0, 1))
def test_mixing_weights_share_one(mu):
    weights = mixing_weights(mu)
    assert weights.supervised == mu
    assert sum(weights) == pytest.approx(1.0, abs=1e-15)


def test_mixing_runs_from_imitation_to_reward():
    # mu of a run of 3 steps: 1, 1/2, 0
    weights = [mixing_weights(mu) for mu in values(Schedule(kind="linear", start=1.0, end=0.0), 3)]
    assert weights == [MixingWeights(1.0, 0.0), MixingWeights(0.5, 0.5), MixingWeights(0.0, 1.0)]


@pytest.mark.parametrize("mu", [-0.1, 1.1, math.nan])
def test_mixing_refuses_what_is_no_share(mu):
    with pytest.raises(ValueError, match=f"mu must be between 0 and 1, got {mu}"):
        mixing_weights(mu)
