import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from tiny_attention import make_clinical_examples, make_data, make_task, shake
from torch import Tensor

from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.datasets.checkpoint import ModelDataset
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes, make_batch
from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics, describe_columns, drop_values, fit_statistics
from grpo_pipeline.tasks.attention.clinical_prompts import ClinicalPrompt, ClinicalReadOut
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask


def table() -> pd.DataFrame:
    values = {"age": [60.0, 64.0, 71.0, 90.0, 10.0], "psa": [NAN, 4.0, 8.0, NAN, 999.0], "kit": [0.1, 0.1, 0.1, NAN, 7.0]}
    return pd.DataFrame(values | {"split": ["train", "train", "train", "val", "test"]})


def test_the_training_rows_alone_are_described_and_normalise():
    # age: mean 65, variance (25 + 1 + 36) / 3; psa: 4 and 8.
    found = describe_columns(table(), ("age", "psa", "kit"))
    assert found["age"] == pytest.approx({"known": 3, "unknown": 0, "mean": 65.0, "std": (62 / 3) ** 0.5, "median": 64.0})
    assert found["psa"] == pytest.approx({"known": 2, "unknown": 1, "mean": 6.0, "std": 2.0, "median": 6.0})
    assert found["kit"]["std"] == 0.0  # three times 0.1 add up to a little more than 0.3
    fitted = fit_statistics(table(), ("psa", "kit", "age"))
    expected = (6.0, pytest.approx(0.1), 65.0), (2.0, 1.0, pytest.approx((62 / 3) ** 0.5))
    assert fitted == ClinicalStatistics(("psa", "kit", "age"), *expected)
    other = table()
    other.loc[3:, ["age", "psa", "kit"]] = 12345.0
    assert fit_statistics(other, ("psa", "kit", "age")) == fitted
    other.loc[:2, "psa"] = NAN
    with pytest.raises(ValueError, match="column 'psa' must have a known value in the training split, got none; fill it in"):
        fit_statistics(other, ("age", "psa"))


def test_values_are_those_of_the_rows_and_a_missing_column_is_unknown():
    examples = make_clinical_examples()
    asked = replace(examples, table=examples.table.drop(columns="setup"))
    batch = make_batch(make_data(asked), np.array([2, 0]), grid=4, device=torch.device("cpu"), clinical=("psa", "setup", "age"))
    rows = examples.table.loc[[2, 0]]
    np.testing.assert_array_equal(batch.clinical, np.stack([rows["psa"], [NAN, NAN], rows["age"]], 1).astype(np.float32))


def test_values_are_dropped_each_by_itself_as_the_generator_says():
    values = torch.arange(8000.0).reshape(2000, 4)
    values[::2, 1] = torch.nan
    made, again, other = (drop_values(values, 0.25, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    whole = drop_values(torch.ones(2000, 4), 0.25, generator=torch.Generator().manual_seed(0))
    is_dropped = whole.isnan()
    assert torch.equal(made.isnan(), is_dropped | values.isnan())  # the unknown stays unknown and changes no draw
    assert torch.equal(made[~made.isnan()], values[~made.isnan()])
    assert torch.equal(again.isnan(), made.isnan())
    assert not torch.equal(other.isnan(), made.isnan())
    # 5 sigma of 2000 draws of probability 0.25
    share = is_dropped.double().mean(0)
    torch.testing.assert_close(share, torch.full((4,), 0.25, dtype=torch.float64), atol=5 * (0.1875 / 2000) ** 0.5, rtol=0)
    together = is_dropped.double().T.corrcoef() - torch.eye(4)
    assert float(together.abs().max()) < 5 / 2000**0.5


NAN = float("nan")
ON = {"dropout": 0.25}
ROWS = np.arange(4)


def points(n: int = 4, group: int = 3, k: int = 2) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(0))


def clinical_task(class_decoder: str = "glimpse", **clinical: float) -> AttentionTask:
    return make_task(make_clinical_examples(), clinical=ON | clinical, class_decoder={"kind": class_decoder})


def clinical_batch(task: AttentionTask, rows: np.ndarray = ROWS) -> AttentionBatch:
    return task.make_batch(make_data(make_clinical_examples()), rows)


def clinical_prompt_decode(policy: AttentionModel, batch: AttentionBatch, clinical: Tensor | None, points: Tensor) -> Outcomes:
    features = policy.sam.encode(batch.images)
    return policy.decode(features, batch.images, points, batch.bag, clinical)


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
    before = clinical_prompt_decode(policy, batch, batch.clinical, points(k=k))
    changed = batch.clinical.clone()
    changed[1, 0] += 20.0
    after = clinical_prompt_decode(policy, batch, changed, points(k=k))
    for name in ("class_logits", "mask_logits"):
        moved = (getattr(after, name) - getattr(before, name)).abs().flatten(1).amax(1)
        assert float(moved[1]) > 1e-3, name
        assert float(moved[[0, 2, 3]].max()) < 1e-6, name


def test_only_training_batches_drop_values_alike_for_all_samples_of_a_group():
    task, data, rows = clinical_task(dropout=0.5), make_data(make_clinical_examples()), np.arange(8)
    whole = task.make_batch(data, rows).clinical
    np.testing.assert_array_equal(whole.numpy(), data.examples.table.loc[rows, ["age", "psa", "setup"]].to_numpy(np.float32))
    batch, again, other = (task.make_batch(data, rows, generator=torch.Generator().manual_seed(seed)) for seed in (0, 0, 3))
    assert torch.equal(batch.clinical.isnan(), again.clinical.isnan())
    assert not torch.equal(batch.clinical.isnan(), other.clinical.isnan())
    made = clinical_prompt_decode(shaken(task), batch, batch.clinical, points(8, 1).expand(-1, 3, -1, -1))
    torch.testing.assert_close(made.class_logits, made.class_logits[:, :1].expand(-1, 3), atol=1e-6, rtol=0)
    assert torch.equal(task.replicate(batch, 3).clinical.isnan(), batch.clinical.isnan())
    assert len({tuple(row) for row in (batch.clinical.isnan() & ~whole.isnan()).tolist()}) > 2


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
        a, b = (clinical_prompt_decode(model, batch, batch.clinical, points()) for model in (policy, again))
    torch.testing.assert_close(a.class_logits, b.class_logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(a.mask_logits, b.mask_logits, atol=1e-6, rtol=0)


def test_another_split_needs_another_task():
    examples = make_clinical_examples()
    task = make_task(examples, clinical=ON)
    other = replace(examples, table=examples.table.assign(split=["test"] * 5 + ["train"] * 8 + ["val"] * 2))
    assert make_task(other, clinical=ON).clinical == fit_statistics(other.table, examples.clinical) != task.clinical
    assert task.fingerprint(make_data(examples))["clinical_columns"] == ["age", "psa", "setup"]
    with pytest.raises(ValueError, match="must be normalised by the training rows of the data, got a task .* another split"):
        task.fingerprint(make_data(other))


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match="attention.data.columns.clinical must name a column for attention.model.clinical"):
        make_task(clinical=ON)
    task = clinical_task()
    policy, batch = task.build_policy(0), clinical_batch(task)
    with pytest.raises(ValueError, match="the batch must hold clinical values for a model with clinical prompts, got None"):
        clinical_prompt_decode(policy, batch, None, points())
