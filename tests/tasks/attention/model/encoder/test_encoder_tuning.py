"""Adapters inside the task: start, update, export, checkpoints."""

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
    make_state,
    make_task,
    model_params,
    shake,
    training_params,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import SamModel

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.datasets.checkpoint import ModelDataset
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.tasks.attention.model.encoder.encoder_tuning import tune_encoder
from grpo_pipeline.tasks.attention.model.encoder.params import AdapterTuning
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.sam import Sam

ADAPTER = {"kind": "adapter", "rank": 3}


@pytest.fixture
def start(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The encoder's parameters: from scratch, or from a checkpoint of each format."""
    if request.param == "scratch":
        return {}
    path = oracle.write_tiny(tmp_path)
    section = {"kind": "sam", "path": str(path), "format": "segment_anything", "normalisation": "medsam"}
    if request.param == "huggingface":
        net: SamModel = make_task(encoder=section).build_policy(0).sam.net
        net.save_pretrained(tmp_path / "folder")
        section |= {"path": str(tmp_path / "folder"), "format": "huggingface"}
    return section


def features(task: Any, policy: AttentionModel, n: int = 3) -> Tensor:
    return policy.encode(task.make_batch(make_data(), np.arange(n))).detach()


@pytest.mark.parametrize("start", ["scratch", "segment_anything", "huggingface"], indirect=True)
def test_tuning_starts_as_the_plain_encoder_and_moves_the_addition_alone(start: dict[str, Any], tmp_path: Path):
    plain, task, data = make_task(encoder=start), make_task(encoder=start | {"tuning": ADAPTER}), make_data()
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
    algorithm, training = algorithm_params("supervised"), training_params()
    state, runner = make_state(task, data, algorithm, training), StepRunner(task, algorithm, training)
    before, encoded = weights(state.policy), features(task, state.policy)
    for _ in range(2):  # the first moves W_up away from 0, the second W_down
        state, _ = runner(state, task.make_batch(data, np.arange(4)))
    moved = {name for name in differing(before, weights(state.policy)) if "vision_encoder" in name}
    assert moved == {name for name in before if "vision_encoder" in name and "adapter." in name}
    assert not torch.allclose(features(task, state.policy), encoded, atol=1e-5)
    groups = task.parameter_groups(state.policy)
    assert {id(p) for p in groups["encoder"]} == {id(p) for name, p in state.policy.named_parameters() if "adapter." in name}
    dataset = ModelDataset(str(tmp_path / "model"))
    dataset.save(weights_of(state.policy, task.describe(state.policy)))
    loaded = dataset.load()
    again = AttentionModel.from_description(json.loads(json.dumps(dict(loaded.config))))
    again.load_state_dict(dict(loaded.tensors))
    assert torch.equal(features(task, again), features(task, state.policy))


def test_the_seed_decides_and_the_global_stream_stays():
    task = make_task(encoder={"tuning": ADAPTER})
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, c = (weights(task.build_policy(seed)) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    assert differing(a, b) == []
    assert any("adapter.down" in name for name in differing(a, c))


def test_what_cannot_be_combined_is_refused():
    extra, missing = "Extra inputs are not permitted", "Field required"
    for tuning, message in (
        ({"kind": "adapter"}, rf"adapter\.rank\n  {missing}"),
        ({"kind": "frozen", "rank": 8}, rf"frozen\.rank\n  {extra}"),
        ({"kind": "adapter", "rank": 8, "alpha": 16}, rf"adapter\.alpha\n  {extra}"),
        ({"kind": "adapter", "rank": 0}, "greater than or equal to 1"),
        ({"kind": "train"}, "expected tags: 'frozen', 'adapter'"),
    ):
        with pytest.raises(ValidationError, match=message):
            model_params(encoder={"tuning": tuning})


@torch.no_grad()
def test_each_block_is_attention_adapter_mlp_adapter():
    """One block of the encoder against the sum written out; window attention, so that padding would show."""
    torch.manual_seed(0)
    encoder = Sam(model_params(encoder={"layers": 1}), 32).net.vision_encoder
    shake(encoder)
    tune_encoder(encoder, AdapterTuning.model_validate(ADAPTER))
    shake(encoder, scale=0.1)
    block = encoder.layers[0]

    def adapted(adapter: nn.Module, x: Tensor) -> Tensor:
        hidden = F.gelu(x @ adapter.down.weight.T + adapter.down.bias)
        return x + hidden @ adapter.up.weight.T + adapter.up.bias

    x = torch.randn(2, 4, 4, 16, generator=torch.Generator().manual_seed(1))
    middle = x + adapted(block.attn.adapter, block.attn.base(hidden_states=block.layer_norm1(x))[0])
    expected = middle + adapted(block.mlp.adapter, block.mlp.base(block.layer_norm2(middle)))
    torch.testing.assert_close(block(x), expected, atol=1e-5, rtol=0)
    assert block.attn.adapter.down.weight.shape == (3, 16)
