"""Clinical prompts: the tokens, what they reach, and what they must not reach."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_attention import (
    make_clinical_examples,
    make_data,
    make_task,
    shake,
)
from torch import Tensor

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.datasets.checkpoint import ModelDataset
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.data.clinical import ClinicalStatistics, fit_statistics
from grpo_pipeline.tasks.attention.model.model import AttentionModel, ClinicalPrompt, ClinicalReadOut
from grpo_pipeline.tasks.attention.task import AttentionTask

NAN = float("nan")
ON = {"dropout": 0.25}
ROWS = np.arange(4)


def clinical_task(class_decoder: str = "glimpse", **clinical: float) -> AttentionTask:
    return make_task(make_clinical_examples(), clinical=ON | clinical, class_decoder=class_decoder)


def clinical_batch(task: AttentionTask, rows: np.ndarray = ROWS) -> AttentionBatch:
    return task.make_batch(make_data(make_clinical_examples()), rows)


def decode(policy: AttentionModel, batch: AttentionBatch, clinical: Tensor | None, points: Tensor) -> Outcomes:
    features = policy.sam.encode(batch.images)
    return policy.decode(features, batch.images, points, batch.bag, clinical)


def points(n: int = 4, group: int = 3, k: int = 2) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(0))


def shaken(task: AttentionTask) -> AttentionModel:
    policy = task.build_policy(0)
    shake(policy)
    return policy


def prompt() -> ClinicalPrompt:
    torch.manual_seed(0)
    return ClinicalPrompt(ClinicalStatistics(("age", "psa"), (65.0, 6.0), (8.0, 2.0)), 4)


@torch.no_grad()
def test_tokens_equal_a_naive_loop():
    module, values = prompt(), torch.tensor([[73.0, NAN], [57.0, 9.0], [NAN, NAN]])
    expected = torch.empty(3, 2, 4)
    for p in range(3):
        for f, (mean, std) in enumerate([(65.0, 8.0), (6.0, 2.0)]):
            value = float(values[p, f])
            known = module.slope[f] * ((value - mean) / std) + module.column[f]
            expected[p, f] = module.unknown[f] if np.isnan(value) else known
    torch.testing.assert_close(module(values), expected, atol=1e-6, rtol=0)
    assert len({tuple(token.tolist()) for token in module(values).flatten(0, 1)}) == 5  # psa is unknown twice


def test_an_unknown_value_has_no_influence():
    module = prompt()
    values = torch.tensor([[73.0, NAN], [NAN, NAN]], requires_grad=True)
    module(values).square().sum().backward()
    assert values.grad is not None
    assert values.grad[0, 0] != 0
    assert values.grad.flatten()[1:].tolist() == [0.0, 0.0, 0.0]
    # psa is never known here: its map is taught nothing, its token for "unknown" is.
    for learned in (module.slope, module.column):
        assert torch.equal(learned.grad[1], torch.zeros(4))
        assert bool((learned.grad[0] != 0).any())
    assert bool((module.unknown.grad != 0).all())


def test_the_read_out_starts_at_zero_and_is_linear():
    read_out, tokens = ClinicalReadOut(2, 4), torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(read_out(tokens), torch.zeros(3))
    shake(read_out)
    expected = [sum(float(tokens[p, f] @ read_out.weights[f].detach()) for f in range(2)) / 8**0.5 for p in range(3)]
    assert read_out(tokens).tolist() == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("k", [0, 2])
@pytest.mark.parametrize("class_decoder", ["glimpse", "global"])
def test_tokens_reach_the_heatmap_and_the_class_of_their_own_core(class_decoder: str, k: int):
    task = clinical_task(class_decoder)
    policy, batch = shaken(task), clinical_batch(task)
    before = decode(policy, batch, batch.clinical, points(k=k))
    changed = batch.clinical.clone()
    changed[1, 0] += 20.0
    after = decode(policy, batch, changed, points(k=k))
    for name in ("class_logits", "mask_logits"):
        moved = (getattr(after, name) - getattr(before, name)).abs().flatten(1).amax(1)
        assert float(moved[1]) > 1e-3, name
        assert float(moved[[0, 2, 3]].max()) < 1e-6, name


@torch.no_grad()
def test_samples_of_a_group_are_told_the_same():
    task = clinical_task(dropout=0.5)
    policy = shaken(task)
    data = make_data(make_clinical_examples())
    batch = task.make_batch(data, np.arange(8), generator=torch.Generator().manual_seed(0))
    same = points(8, 1).expand(-1, 3, -1, -1)
    made = decode(policy, batch, batch.clinical, same)
    torch.testing.assert_close(made.class_logits, made.class_logits[:, :1].expand(-1, 3), atol=1e-6, rtol=0)
    assert torch.equal(task.replicate(batch, 3).clinical.isnan(), batch.clinical.isnan())
    dropped = batch.clinical.isnan() & ~task.make_batch(data, np.arange(8)).clinical.isnan()
    assert len({tuple(row) for row in dropped.tolist()}) > 2


def test_only_training_batches_drop_and_the_generator_decides():
    task, data = clinical_task(dropout=0.5), make_data(make_clinical_examples())
    whole = task.make_batch(data, ROWS).clinical
    expected = data.examples.table.loc[ROWS, ["age", "psa", "kit"]].to_numpy(np.float32)
    np.testing.assert_array_equal(whole.numpy(), expected)
    first, again, other = (
        task.make_batch(data, ROWS, generator=torch.Generator().manual_seed(seed)).clinical.isnan() for seed in (0, 0, 3)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_statistics_come_from_the_training_rows_and_are_saved_with_the_model(tmp_path: Path):
    examples = make_clinical_examples()
    task = make_task(examples, clinical=ON)
    policy = shaken(task)
    psa = examples.table.loc[examples.table["split"] == "train", "psa"].dropna()
    assert float(policy.clinical.mean[1]) == pytest.approx(psa.mean(), rel=1e-6)
    assert float(policy.clinical.std[1]) == pytest.approx(psa.std(ddof=0), rel=1e-6)
    assert float(policy.clinical.std[2]) == 1.0
    dataset = ModelDataset(str(tmp_path / "model"))
    dataset.save(weights_of(policy, task.describe(policy)))
    loaded = dataset.load()
    again = AttentionModel.from_description(json.loads(json.dumps(dict(loaded.config))))
    again.load_state_dict(dict(loaded.tensors))
    batch = clinical_batch(task)
    with torch.no_grad():
        a, b = (decode(model, batch, batch.clinical, points()) for model in (policy, again))
    torch.testing.assert_close(a.class_logits, b.class_logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(a.mask_logits, b.mask_logits, atol=1e-6, rtol=0)


def test_another_split_needs_another_task():
    examples = make_clinical_examples()
    task = make_task(examples, clinical=ON)
    other = replace(examples, table=examples.table.assign(split=["test"] * 5 + ["train"] * 8 + ["val"] * 2))
    assert make_task(other, clinical=ON).clinical == fit_statistics(other.table, examples.clinical) != task.clinical
    assert task.fingerprint(make_data(examples))["clinical_columns"] == ["age", "psa", "kit"]
    with pytest.raises(ValueError, match="must be normalised by the training rows of the data, got a task .* another split"):
        task.fingerprint(make_data(other))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="attention.data.columns.clinical must name a column for attention.model.clinical"):
        make_task(clinical=ON)
    task = clinical_task()
    policy, batch = task.build_policy(0), clinical_batch(task)
    with pytest.raises(ValueError, match="the batch must hold clinical values for a model with clinical prompts, got None"):
        decode(policy, batch, None, points())
    with pytest.raises(ValueError, match="attention.model.clinical must be null for a model with the clinical columns none"):
        AttentionModel(task.model, task.image_size)
