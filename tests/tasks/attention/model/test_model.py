"""Clinical prompts: the tokens, what they reach, and what they must not reach."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_attention import (
    GRID,
    algorithm_params,
    differing,
    make_batch,
    make_clinical_examples,
    make_data,
    make_examples,
    make_task,
    model_params,
    section,
    shake,
    training_params,
    weights,
)
from torch import Tensor
from transformers.models.sam.modeling_sam import SamVisionLayer

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.datasets.checkpoint import ModelDataset
from grpo_pipeline.tasks.attention import build
from grpo_pipeline.tasks.attention.batch import AttentionBatch, Outcomes
from grpo_pipeline.tasks.attention.data.clinical import ClinicalStatistics, fit_statistics
from grpo_pipeline.tasks.attention.model.model import AttentionModel, ClinicalPrompt, ClinicalReadOut, checkpoint_layers
from grpo_pipeline.tasks.attention.params import RewardParams, SupervisedParams
from grpo_pipeline.tasks.attention.task import AttentionTask


def decode(points: Tensor, bag: Tensor | None = None, **model: str) -> Outcomes:
    task = make_task(**model)
    policy = task.build_policy(0)
    shake(policy)
    batch = make_batch(task, (0, 1))
    context = task.encode(policy, batch)
    return policy.decode(context.features, context.images, points, batch.bag if bag is None else bag)


def points(n: int = 4, group: int = 3, k: int = 2) -> Tensor:
    return torch.rand(n, group, k, 2, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def test_bag_prob_is_the_mean_over_the_bag():
    bag = torch.zeros(2, 4 * GRID, 4 * GRID)
    bag[0, 2, 5], bag[0, 3, 7], bag[1, 0, 0] = 1.0, 0.5, 0.25
    made = decode(points(2), bag)
    heat = made.mask_logits.sigmoid()
    torch.testing.assert_close(made.bag_probs[0], (heat[0, :, 2, 5] + 0.5 * heat[0, :, 3, 7]) / 1.5, atol=1e-6, rtol=0)
    torch.testing.assert_close(made.bag_probs[1], heat[1, :, 0, 0], atol=1e-6, rtol=0)


NAN = float("nan")
ON = {"dropout": 0.25}
ROWS = np.arange(4)


def clinical_task(class_decoder: str = "glimpse", **clinical: float) -> AttentionTask:
    return make_task(make_clinical_examples(), clinical=ON | clinical, class_decoder=class_decoder)


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


def test_only_training_batches_drop_the_generator_decides_and_samples_of_a_group_are_told_the_same():
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
    with pytest.raises(ValueError, match="attention.model.clinical must be null for a model with the clinical columns none"):
        AttentionModel(task.model, task.image_size)
    if torch.cuda.is_available():
        pytest.skip("the rest needs a machine without CUDA")
    with pytest.raises(ValueError, match="training.device must be a device that torch finds, got cuda:7"):
        task_with(training_params(device="cuda:7"))


PLAIN = make_task()


def task_with(training: TrainingParams) -> AttentionTask:
    reward, loss = RewardParams(**section("reward")), SupervisedParams(**section("supervised_loss"))
    return build.build_task(model_params(), reward, loss, make_examples(), training)


def encoded(task: AttentionTask) -> tuple[AttentionModel, torch.Tensor, list[torch.Tensor]]:
    """Return the policy, its features, and the gradient of their squares."""
    policy = task.build_policy(0)
    shake(policy)
    features = task.encode(policy, make_batch(PLAIN)).features
    parameters = [p for p in policy.sam.net.vision_encoder.parameters() if p.requires_grad]
    return policy, features, list(torch.autograd.grad(features.square().mean(), parameters))


def test_checkpointed_layers_run_a_second_time_and_give_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, original = [], SamVisionLayer.window_partition

    def counted(self: SamVisionLayer, *args: object) -> object:
        calls.append(id(self))
        return original(self, *args)

    monkeypatch.setattr(SamVisionLayer, "window_partition", counted)
    _, plain, expected = encoded(PLAIN)
    once = len(calls)
    policy, features, gradients = encoded(task_with(training_params(activation_checkpointing="encoder")))
    assert len(calls) - once == 2 * once == 2 * sum(layer.window_size > 0 for layer in policy.sam.net.vision_encoder.layers) > 0
    assert torch.equal(features, plain)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))
    assert checkpoint_layers(policy.sam.net.vision_encoder) == len(policy.sam.net.vision_encoder.layers)


def test_channels_last_moves_memory_and_no_number() -> None:
    policy, features, gradients = encoded(task_with(training_params(memory_format="channels_last")))
    plain, expected, expected_gradients = encoded(PLAIN)
    weight = policy.policy.trunk[0][0].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()
    assert differing(weights(plain), weights(policy)) == []
    # Sums in another order: single numbers near 0 have no relative precision, the tensor as a whole has.
    close_as_a_whole(features, expected)
    for gradient, other in zip(gradients, expected_gradients, strict=True):
        close_as_a_whole(gradient, other)


def close_as_a_whole(got: torch.Tensor, expected: torch.Tensor) -> None:
    """Assert that two tensors differ by at most 1e-5 of the norm of the second."""
    assert torch.linalg.vector_norm(got - expected) <= 1e-5 * torch.linalg.vector_norm(expected)


def test_a_compiled_encoder_keeps_its_names_and_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler itself is not run: it takes minutes."""
    compiled = []
    monkeypatch.setattr(build, "check_compiler", lambda device: compiled.append(device.type))
    monkeypatch.setattr(
        torch, "compile", lambda function, **_: lambda *args, **kw: compiled.append("call") or function(*args, **kw)
    )
    policy, features, _ = encoded(task_with(training_params(compile="encoder")))
    assert compiled == ["cpu", "call"]
    plain, expected, _ = encoded(PLAIN)
    assert list(weights(policy)) == list(weights(plain))
    assert torch.equal(features, expected)
    assert copy.deepcopy(policy).sam.net.vision_encoder._compiled_call_impl is None  # a reference runs as it is


def test_a_policy_with_an_encoder_of_its_own_learns_in_it_alone_and_starts_where_a_shared_one_does() -> None:
    shared, own = (make_task(policy_encoder=name).build_policy(0) for name in ("shared", "own"))
    mine = {name.removeprefix("policy_encoder."): p for name, p in own.named_parameters() if name.startswith("policy_encoder.")}
    theirs = dict(own.sam.net.vision_encoder.named_parameters())
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) and mine[name] is not theirs[name] for name in mine)
    same = {name: tensor for name, tensor in own.state_dict().items() if not name.startswith("policy_encoder.")}
    assert all(torch.equal(tensor, same[name]) for name, tensor in shared.state_dict().items())

    task = make_task(policy_encoder="own")
    groups = task.parameter_groups(own)
    assert {id(p) for p in groups["policy_encoder"]} == {id(p) for p in mine.values() if p.requires_grad}
    shake(own.policy)
    batch = make_batch(task)
    context = task.encode(own, batch)
    logits, values = own.propose(context)
    outcomes = own.decode(context.features, context.images, points()[[0, 1, 0, 1]], batch.bag)
    losses = {"policy": logits.cells[:, 3].sum(), "value": values.sum(), "decoders": outcomes.mask_logits.sum()}
    for name, loss in losses.items():
        of_mine, of_theirs = (
            torch.autograd.grad(loss, list(encoder.values()), retain_graph=True, allow_unused=True) for encoder in (mine, theirs)
        )
        taught, left = (of_theirs, of_mine) if name == "decoders" else (of_mine, of_theirs)
        assert any(g is not None and g.abs().sum() > 0 for g in taught), name
        assert all(g is None for g in left), name
    before = own.propose(context)[0].cells
    with torch.no_grad():
        mine["patch_embed.projection.bias"].add_(0.5)
    after = task.encode(own, batch)
    assert torch.equal(after.features, context.features)
    assert not torch.equal(own.propose(after)[0].cells, before)
    detached = task.detach(context)
    assert not detached.features.requires_grad
    assert not detached.policy_features.requires_grad
    again = AttentionModel.from_description(json.loads(json.dumps(task.describe(own))))
    again.load_state_dict(own.state_dict())
    assert torch.equal(again.propose(task.encode(again, batch))[0].cells, own.propose(after)[0].cells)
    with pytest.raises(ValueError, match="must hold policy_features for a model with policy_encoder: own, got None"):
        own.propose(replace(context, policy_features=None))
    assert "policy_encoder" not in make_task().describe(shared)["model"]  # digests of models without it stay


@pytest.mark.parametrize("separate", [{"policy_encoder": "own"}, {"encoder": "frozen"}])
def test_gradients_are_projected_where_two_losses_teach_one_component_alone(separate: dict[str, str]) -> None:
    projected = algorithm_params(gradient_projection="conflicting")
    with pytest.raises(ValueError, match="gradient_projection must be none with attention.model.encoder = .*, got conflicting"):
        make_task(**separate).check_algorithm(projected)
    make_task().check_algorithm(projected)
    make_task(supervised={"location_weight": 1.0}, **separate).check_algorithm(projected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "frozen"}, "policy_encoder must be shared with encoder: frozen, got own"),
        ({"policy_reads": "cell"}, "policy_encoder must be shared with policy_reads: cell, got own"),
    ],
)
def test_a_copy_of_the_encoder_that_nothing_trains_or_reads_is_refused(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model_params(policy_encoder="own", **changes)
