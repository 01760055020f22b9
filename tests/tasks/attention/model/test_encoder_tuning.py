"""Adapters and low-rank updates inside the task: start, update, export, checkpoints."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sam_oracle as oracle
import torch
from pydantic import ValidationError
from tiny_attention import (
    algorithm_params,
    differing,
    make_data,
    make_examples,
    make_state,
    make_task,
    model_params,
    training_params,
    weights,
)
from torch import Tensor
from transformers import SamModel

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.datasets.checkpoint import ModelDataset
from grpo_pipeline.pipelines.training.loop import Fold
from grpo_pipeline.tasks.attention.build import FeatureSet, encode_examples
from grpo_pipeline.tasks.attention.model.model import AttentionModel

TUNED: dict[str, dict[str, Any]] = {
    "adapter": {"encoder": "adapter", "encoder_tuning": {"rank": 3}},
    "lora": {"encoder": "lora", "encoder_tuning": {"rank": 3, "alpha": 6.0, "targets": ["qkv"]}},
    "lora_proj": {"encoder": "lora", "encoder_tuning": {"rank": 2, "alpha": 2.0, "targets": ["qkv", "proj"]}},
}
both = pytest.mark.parametrize("tuned", TUNED.values(), ids=TUNED.keys())


@pytest.fixture(params=["scratch", "segment_anything", "huggingface"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """Changes of the model's parameters: from scratch, or from a checkpoint of each kind."""
    if request.param == "scratch":
        return {}
    path = oracle.write_tiny(tmp_path)
    section = {"path": str(path), "kind": "segment_anything", "normalisation": "medsam"}
    if request.param == "huggingface":
        net: SamModel = make_task(checkpoint=section).build_policy(0).sam.net
        net.save_pretrained(tmp_path / "folder")
        section |= {"path": str(tmp_path / "folder"), "kind": "huggingface"}
    return {"checkpoint": section}


def features(task: Any, policy: AttentionModel, n: int = 3) -> Tensor:
    return policy.encode(task.make_batch(make_data(), np.arange(n))).detach()


@both
def test_starts_as_the_plain_encoder(start: dict[str, Any], tuned: dict[str, Any]):
    plain, task = make_task(**start), make_task(**start, **tuned)
    policies = [each.build_policy(0) for each in (plain, task)]
    a, b = (weights(policy) for policy in policies)
    shared = {name: tensor for name, tensor in a.items() if not name.startswith("sam.net.vision_encoder")}
    assert differing(shared, b) == []
    # In float64: where a tensor lies in memory changes float32 sums by a little more than 1e-6.
    encoders = [policy.sam.net.vision_encoder.double() for policy in policies]
    channels = encoders[0].config.num_channels
    images = torch.randn(2, channels, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, second = (encoder(images).last_hidden_state.detach() for encoder in encoders)
    torch.testing.assert_close(second, first, atol=1e-6, rtol=0)


@both
def test_an_update_moves_the_addition_alone_and_is_saved(start: dict[str, Any], tuned: dict[str, Any], tmp_path: Path):
    task, data = make_task(**start, **tuned), make_data()
    algorithm, training = algorithm_params("supervised"), training_params()
    state, fold = make_state(task, data, algorithm, training), Fold(task, algorithm, training)
    before, encoded = weights(state.policy), features(task, state.policy)
    for _ in range(2):  # the first moves B (or W_up) away from 0, the second A (or W_down)
        state, _ = fold(state, task.make_batch(data, np.arange(4)))
    moved = {name for name in differing(before, weights(state.policy)) if "vision_encoder" in name}
    added = ("adapter.", "lora_")
    assert moved == {name for name in before if "vision_encoder" in name and any(part in name for part in added)}
    assert not torch.allclose(features(task, state.policy), encoded, atol=1e-5)
    groups = task.parameter_groups(state.policy)
    assert {id(p) for p in groups["encoder"]} == {
        id(p) for name, p in state.policy.named_parameters() if any(part in name for part in added)
    }
    dataset = ModelDataset(str(tmp_path / "model"))
    dataset.save(weights_of(state.policy, task.describe(state.policy)))
    loaded = dataset.load()
    again = AttentionModel.from_description(json.loads(json.dumps(dict(loaded.config))))
    again.load_state_dict(dict(loaded.tensors))
    assert torch.equal(features(task, again), features(task, state.policy))


@both
def test_features_that_train_are_not_kept(tuned: dict[str, Any]):
    task, empty = make_task(**tuned), FeatureSet(key="", values=None)
    assert encode_examples(task, task.build_policy(0), make_examples(), empty) == empty


@both
def test_the_seed_decides_and_the_global_stream_stays(tuned: dict[str, Any]):
    task = make_task(**tuned)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (weights(task.build_policy(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert differing(a, b) == []
    assert any("lora_A" in name or "adapter.down" in name for name in differing(a, c))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "lora"}, "encoder_tuning must be given with encoder: lora, got None"),
        ({"encoder": "adapter"}, "encoder_tuning must be given with encoder: adapter, got None"),
        ({"encoder": "frozen", "encoder_tuning": {"rank": 8}}, "encoder_tuning must be null with encoder: frozen"),
        ({"encoder": "lora", "encoder_tuning": {"rank": 8}}, "encoder_tuning.alpha must be given with encoder: lora, got None"),
        (
            {"encoder": "lora", "encoder_tuning": {"rank": 8, "alpha": 16}},
            "encoder_tuning.targets must be given with encoder: lora, got None",
        ),
        (
            {"encoder": "adapter", "encoder_tuning": {"rank": 8, "alpha": 16}},
            "encoder_tuning.alpha must be null with encoder: adapter, got 16.0",
        ),
        ({"encoder": "adapter", "encoder_tuning": {"rank": 0}}, "greater than or equal to 1"),
        ({"encoder": "lora", "encoder_tuning": {"rank": 1, "alpha": 1, "targets": ["mlp"]}}, "Input should be 'qkv' or 'proj'"),
    ],
)
def test_what_cannot_be_combined_is_refused(changes: dict[str, Any], message: str):
    with pytest.raises(ValidationError, match=message):
        model_params(**changes)
