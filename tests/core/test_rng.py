import json
import random

import numpy as np
import pytest
import torch

from grpo_pipeline.core.rng import capture_rng, restore_rng, step_generator


def draw(generator):
    return (
        torch.randn(3).tolist(),
        np.random.standard_normal(3).tolist(),  # noqa: NPY002 the global stream is under test
        random.gauss(0, 1),
        torch.randn(2, generator=generator).tolist(),
    )


def test_every_stream_goes_on_after_a_round_trip_through_json():
    generator = torch.Generator().manual_seed(3)
    draw(generator)  # leaves half of a Box-Muller pair in the global streams
    captured = json.loads(json.dumps(capture_rng({"order": generator})))
    expected = [draw(generator), draw(generator)]
    other = torch.Generator().manual_seed(99)
    draw(other)
    restore_rng(captured, {"order": other})
    assert [draw(other), draw(other)] == expected


def test_refuses_other_generators():
    with pytest.raises(ValueError, match=r"of the checkpoint \['a'\], got \['b'\]"):
        restore_rng(capture_rng({"a": torch.Generator()}), {"b": torch.Generator()})


def test_step_generator_depends_on_each_argument_and_on_nothing_else():
    def first(*args, **kwargs):
        return torch.rand(1, generator=step_generator(*args, **kwargs)).item()

    torch.rand(5)
    assert first(1, 2) == first(1, 2)
    assert len({first(seed, step, stream=stream) for seed in range(4) for step in range(4) for stream in range(2)}) == 32
