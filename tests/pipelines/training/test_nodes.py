import json
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import (
    algorithm_params,
    differing,
    judge,
    make_batch,
    make_data,
    make_state,
    make_task,
    training_params,
    weights,
)

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.policy_gradient.losses import NonFiniteLossError
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines.step import collect
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.familiarity import Familiarity

TASK, DATA, NOTHING = make_task(), make_data(), NoCheckpoint("nowhere")
TIMES = {"step_seconds", "samples_per_second", "peak_memory_mb"}
# What formulas.md calls "metrics every run logs"; dead/<coefficient> and the gradient norms come at report steps.
EVERY_STEP = {
    "reward/mean", "reward/std", "reward/class/mean", "reward/class/std", "reward/heatmap/mean", "reward/heatmap/std",
    "reward/ties_fraction", "advantage/abs_mean", "policy/loss", "policy/ratio_mean", "policy/ratio_max", "policy/clip_low",
    "policy/clip_high", "policy/ess", "policy/entropy", "kl/reference", "kl/rollout", "value/loss", "value/explained_variance",
    "supervised/loss", "grad_norm/total", "lr", "step_seconds", "samples_per_second", "peak_memory_mb",
}  # fmt: skip
REPORTED = {
    "grad_norm/supervised", "grad_norm/rl", "grad_cosine/supervised_rl",
    "dead/supervised", "dead/policy", "dead/kl", "dead/value", "dead/entropy",
}  # fmt: skip
Yielded = tuple[list[dict[str, Any]], Any]


def short(**changes: Any) -> TrainingParams:
    """Return 3 epochs of 2 steps: checkpoints after steps 2, 4 and 6, a gradient report in steps 1, 3 and 5."""
    return training_params(**{"epochs": 3, "batch_size": 4} | changes)


def run(
    arm: str = "grpo",
    *,
    training: TrainingParams | None = None,
    resume: str = "never",
    start: Any = NOTHING,
    seed: int = 0,
    algorithm: AlgorithmParams | None = None,
    state: TrainState | None = None,
) -> Iterator[Yielded]:
    algorithm, training = algorithm or algorithm_params(arm), training or short()
    state = state or nodes.build_state(algorithm, training, seed, TASK, DATA)
    return nodes.train(algorithm, training, resume, TASK, DATA, state, start, None)


@cache
def whole(arm: str = "grpo") -> list[Yielded]:
    """A run of 6 steps that nothing breaks off."""
    return list(run(arm))


def rows_of(yielded: list[Yielded]) -> list[dict[str, Any]]:
    return [row for rows, _ in yielded for row in rows]


def last_checkpoint(yielded: list[Yielded]) -> Checkpoint:
    return [checkpoint for _, checkpoint in yielded if checkpoint is not False][-1]


def timeless(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text without what depends on the clock; NaN equals NaN there."""
    return [json.dumps({name: value for name, value in row.items() if name not in TIMES}, sort_keys=True) for row in rows]


def test_rows_and_checkpoints_come_at_their_steps():
    yielded = list(run(training=short(checkpoint_every_steps=4, log_every_steps=3)))
    saved = [checkpoint.progress["step"] for _, checkpoint in yielded if checkpoint is not False]
    assert saved == [4, 6]
    # The first yield opens the run; then at steps 3 (log), 4 (checkpoint) and 6 (last).
    assert [len([r for r in rows if r["split"] == "train"]) for rows, _ in yielded] == [0, 3, 1, 2]
    rows = rows_of(yielded)
    assert [(r["step"], r["epoch"]) for r in rows if r["split"] == "train"] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert [r["step"] for r in rows if r["split"] == "val"] == [1, 3, 5]


def test_max_steps_ends_a_run_early_and_an_older_checkpoint_goes_on():
    yielded = list(run(training=short(max_steps=3, checkpoint_every_steps=2)))
    assert [checkpoint.progress["step"] for _, checkpoint in yielded if checkpoint is not False] == [2, 3]
    assert [r["step"] for r in rows_of(yielded) if r["split"] == "val"] == [1, 2]  # the end of an epoch, and of the run
    assert "max_steps" not in short().model_dump()
    assert short(max_steps=3).model_dump()["max_steps"] == 3


def test_every_metric_of_a_run_is_there():
    rows = [row for row in rows_of(whole()) if row["split"] == "train"]
    assert [sorted(EVERY_STEP - row.keys()) for row in rows] == [[]] * 6
    assert [sorted(REPORTED - row.keys()) for row in rows[1::2]] == [[]] * 3
    numbers = [value for row in rows for name, value in row.items() if name not in ("split", "value/explained_variance")]
    assert all(math.isfinite(value) for value in numbers)


def test_the_metrics_of_a_run_are_alive():
    rows = [row for row in rows_of(whole()) if row["split"] == "train"]
    assert [row["policy/ratio_first"] for row in rows] == [1.0] * 6
    assert all(0 < row["policy/ess"] <= 1 for row in rows)
    assert all(row["dead/policy"] == row["dead/supervised"] == 0 for row in rows[1::2])
    assert rows[-1]["kl/reference"] > 1e-9
    assert all(row["reward/mean"] == pytest.approx(row["reward/class/mean"], abs=1e-6) for row in rows)


def test_the_control_shares_the_names_of_its_metrics():
    rows = [row for row in rows_of(whole("supervised")) if row["split"] == "train"]
    rl = {name for name in EVERY_STEP if name.startswith(("policy/", "kl/", "value/"))}
    assert EVERY_STEP - rl <= rows[0].keys()
    assert rows[0].keys().isdisjoint(rl)


def test_the_control_leaves_its_policy_uniform():
    yielded = whole("supervised")
    trained, start = last_checkpoint(yielded).policy, weights(TASK.build_policy(0))
    changed = differing(dict(trained), start)
    assert not any(name.startswith(("policy.", "texture.")) for name in changed)
    assert any(name.startswith("class_decoder.") for name in changed)


def test_both_arms_start_from_the_same_weights():
    a, b = (nodes.build_state(algorithm_params(arm), short(), 0, TASK, DATA) for arm in ("supervised", "grpo"))
    assert differing(weights(a.policy), weights(b.policy)) == []
    assert differing(weights(b.policy), weights(b.reference)) == []
    assert a.total_steps == b.total_steps == 6


@pytest.mark.parametrize(("arm", "stop_after"), [("grpo", 1), ("grpo", 5), ("supervised", 2)])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, arm: str, stop_after: int):
    unbroken = whole(arm)
    dataset, kept = CheckpointDataset(str(tmp_path / "checkpoint")), []
    generator = run(arm)
    for _ in range(stop_after + 1):
        rows, checkpoint = next(generator)
        kept += rows
        dataset.save(checkpoint)
    generator.close()
    torch.manual_seed(99)  # what a new process brings along
    again = list(run(arm, resume="auto", start=CheckpointDataset(str(tmp_path / "checkpoint")).load()))
    first = rows_of(again)[0]["step"]
    assert first == (stop_after // 2) * 2  # from the last checkpoint, not from the last step
    assert timeless([row for row in kept if row["step"] < first] + rows_of(again)) == timeless(rows_of(unbroken))
    a, b = last_checkpoint(unbroken), last_checkpoint(again)
    assert differing(dict(a.policy), dict(b.policy)) == []
    assert differing(dict(a.optimizer["tensors"]), dict(b.optimizer["tensors"])) == []
    assert (a.optimizer["groups"], a.progress) == (b.optimizer["groups"], b.progress)


def test_resume_auto_without_a_checkpoint_starts_anew():
    assert timeless(rows_of(list(run(resume="auto")))) == timeless(rows_of(whole()))


def test_resume_auto_of_a_finished_arm_does_nothing():
    checkpoint = last_checkpoint(whole())
    assert list(run(resume="auto", start=checkpoint)) == [([], False)]


def test_a_learning_rate_of_no_component_is_refused():
    training = short()
    rates = training.optimizer.learning_rates | {"value_headx": 0.1}
    misspelt = training.model_copy(update={"optimizer": training.optimizer.model_copy(update={"learning_rates": rates})})
    with pytest.raises(ValueError, match=r"must name components of the task .*, got 'value_headx'; did you mean value_head\?"):
        nodes.build_state(algorithm_params(), misspelt, 0, TASK, DATA)


def save_all(yielded: Iterator[Yielded], dataset: CheckpointDataset) -> None:
    for _, checkpoint in yielded:
        dataset.save(checkpoint)


def test_a_loss_that_is_not_finite_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    dataset = CheckpointDataset(str(tmp_path / "checkpoint"))
    calls: list[int] = []
    loss = AttentionTask.supervised_loss

    def fail_at_step_3(*args: Any) -> torch.Tensor:
        calls.append(1)
        return loss(*args) * (math.nan if len(calls) == 4 else 1.0)

    monkeypatch.setattr(AttentionTask, "supervised_loss", fail_at_step_3)
    with pytest.raises(NonFiniteLossError, match=r"'supervised' of task 'attention' must be finite, got nan at step 3"):
        save_all(run(), dataset)
    monkeypatch.setattr(AttentionTask, "supervised_loss", loss)
    again = list(run(resume="auto", start=dataset.load()))
    assert differing(dict(last_checkpoint(again).policy), dict(last_checkpoint(whole()).policy)) == []


REMEMBERS = {
    "replay": {"capacity": 8, "max_age_steps": 4, "share": 0.5, "importance_cap": 2.0},
    "entropy_target": {"target": 5.0, "learning_rate": 0.001, "minimum": 0.0, "maximum": 1.0},
    "dynamic_sampling": {"max_retries": 1},
    "reference": {"update": "ema", "every_steps": 1, "decay": 0.9},
}


def test_what_a_run_remembers_is_in_the_checkpoint(tmp_path: Path):
    """Replayed groups, the adapted entropy weight and a moving reference: a resumed run ends with the same bits."""
    algorithm, dataset = algorithm_params(**REMEMBERS), CheckpointDataset(str(tmp_path / "checkpoint"))
    unbroken = list(run(algorithm=algorithm))
    dataset.save([checkpoint for _, checkpoint in unbroken if checkpoint is not False][1])
    stored = dataset.load()
    assert stored.progress["step"] == 4
    again = list(run(algorithm=algorithm, resume="auto", start=stored))
    assert differing(dict(last_checkpoint(again).policy), dict(last_checkpoint(unbroken).policy)) == []
    late = [row for row in rows_of(unbroken) if row["step"] >= 4]
    assert timeless(rows_of(again)) == timeless(late)
    assert all(row["replay/groups"] == 2.0 for row in late if row["split"] == "train")
    weights_used = [row["weight/entropy"] for row in rows_of(unbroken) if row["split"] == "train"]
    assert len(set(weights_used)) == len(weights_used)


def test_probe_table_is_a_worked_example():
    training, algorithm = short(), algorithm_params()
    state, batch = make_state(TASK, DATA, algorithm, training), make_batch(TASK)
    context, grouped = TASK.encode(state.policy, batch), TASK.replicate(batch, training.group_size)
    rollouts, _ = collect.sample_rollouts(algorithm, training, TASK, state, context)
    experience = judge(TASK, algorithm, state, grouped, context, rollouts, 1.0)
    table = nodes.tabulate_probe(TASK, DATA, batch, rollouts, experience.rewards, experience.advantages)
    assert len(table) == 16
    assert table["core_id"].tolist() == [core for core in ("c00", "c01", "c02", "c03") for _ in range(4)]
    np.testing.assert_allclose(table["reward"], table["reward_class"], atol=1e-6)
    groups = table.groupby("core_id")
    expected = (table["reward"] - groups["reward"].transform("mean")) / (groups["reward"].transform("std") + 1e-4)
    np.testing.assert_allclose(table["advantage"], expected, atol=1e-6)


@pytest.mark.parametrize("proposal", ["none", "oracle"])
def test_a_control_with_another_proposal_trains_and_predicts(proposal: str):
    algorithm, training = algorithm_params("supervised", proposal=proposal), short(epochs=1)
    yielded = list(run(algorithm=algorithm, training=training))
    untrained, checkpoint = TASK.build_policy(0), last_checkpoint(yielded)
    assert "class_decoder.prior" in differing(weights(untrained), dict(checkpoint.policy))
    found = [row for row in rows_of(yielded) if row["split"] == "train"]
    assert [row["reward/ties_fraction"] == 1.0 for row in found] == [proposal == "none"] * 2
    predictions, rollouts, _ = nodes.predict(algorithm, training, 0, TASK, DATA, nodes.export_model(TASK, checkpoint))
    assert np.isfinite(predictions["prob"]).all()
    assert len(rollouts) == 5 * training.group_size
    assert ("x0" in rollouts) == (proposal == "oracle")


def test_only_the_oracle_arm_is_shown_the_lesion(monkeypatch: pytest.MonkeyPatch):
    shown: dict[str, set[bool]] = {"uniform": set(), "oracle": set()}
    make = AttentionTask.make_batch
    for proposal, seen in shown.items():

        def record(self: AttentionTask, data: Any, rows: Any, *, seen: set[bool] = seen, **options: Any) -> Any:
            batch = make(self, data, rows, **options)
            seen.add(batch.lesion_cells is not None)
            return batch

        monkeypatch.setattr(AttentionTask, "make_batch", record)
        algorithm, training = algorithm_params("supervised", proposal=proposal), short(epochs=1, validate_every_epochs=9)
        nodes.pick_probe_batch(algorithm, training, 0, TASK, DATA)
        next(rows for rows, _ in run(algorithm=algorithm, training=training) if rows)
    assert shown == {"uniform": {False}, "oracle": {True}}


def test_export_then_predict_scores_the_test_split():
    training = short()
    checkpoint = last_checkpoint(list(run(training=training)))
    calibration = nodes.calibrate(0, TASK, DATA, checkpoint)
    model = nodes.export_model(TASK, checkpoint, calibration)
    assert differing(dict(checkpoint.policy), dict(model.tensors)) == []
    assert model.config["training"]["step"] == 6
    assert "inputs" not in model.config
    knowing = nodes.export_model(TASK, checkpoint, calibration, DATA)
    assert differing(dict(model.tensors), dict(knowing.tensors)) == []
    trained = TASK.build_policy(3)
    trained.load_state_dict(dict(model.tensors))
    assert Familiarity.from_model(knowing).told == TASK.describe_inputs(trained, DATA).told
    predictions, rollouts, shown = nodes.predict(algorithm_params(), training, 0, TASK, DATA, model)
    test_cores = {"c10", "c11", "c12", "c13", "c14"}
    assert set(predictions["core_id"]) == set(rollouts["core_id"]) == set(shown["core_id"].tolist()) == test_cores
    assert len(rollouts) == 5 * training.group_size
    policy = TASK.build_policy(5)
    policy.load_state_dict(dict(model.tensors))
    expected = TASK.evaluate(policy, DATA, TASK.rows(DATA, "test"), seed=0, n_samples=training.group_size)
    np.testing.assert_array_equal(predictions["prob"], expected["prob"])


def test_export_needs_a_checkpoint():
    with pytest.raises(ValueError, match=r"a checkpoint must be in nowhere, got nothing there; train the arm first"):
        nodes.export_model(TASK, NOTHING, {})
    with pytest.raises(ValueError, match=r"a checkpoint must be in nowhere"):
        nodes.calibrate(0, TASK, DATA, NOTHING)
