"""A tiny model that is used alone: 32-pixel images, a 4 x 4 grid, k = 3 points, with every weight shaken."""

from dataclasses import replace
from typing import Any

import torch
from tiny_attention import make_data, make_task, shake

from grpo_pipeline.core.storage.weights import ModelWeights, weights_of
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.attention.inference.predictor import Predictor, build_predictor
from grpo_pipeline.tasks.familiarity import INPUTS

FITTED = {"slope": 0.5, "intercept": -0.25, "n_samples": 3}
CALIBRATION = {"method": "platt", "reason": "", "n": 20, "positives": 10, "bins": 10, **FITTED}


def preprocessing(**changes: Any) -> dict[str, Any]:
    values = {"intensity": "dtype", "empty_bag": "error", "image_size": 32, "volume": None, "clinical": ()}
    return ModelPreprocessing.model_validate(values | changes).model_dump(mode="json")


def make_weights(
    *, calibration: dict[str, Any] | None = None, model: dict[str, Any] | None = None, knows_inputs: bool = False, **changes: Any
) -> ModelWeights:
    task = make_task(**(model or {}))
    policy = task.build_policy(0)
    shake(policy, scale=0.2)
    told = {"preprocessing": preprocessing(**changes), "calibration": CALIBRATION if calibration is None else calibration}
    weights = weights_of(policy, task.describe(policy) | told)
    if not knows_inputs:
        return weights
    familiarity = task.describe_inputs(policy, make_data())
    config = {**weights.config, INPUTS: familiarity.told.model_dump(mode="json")}
    return replace(weights, config=config, beside={INPUTS: familiarity.tensors()})


def make_predictor(**changes: Any) -> Predictor:
    with torch.no_grad():
        return build_predictor(make_weights(**changes), name="tiny")
