import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tiny_talk as talk
import torch
from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from tiny import SERIAL
from tiny_attention import algorithm_params, differing, make_data, make_task, shake, training_params, weights

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.types import Advantages, Rewards
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.training import export, nodes, prediction, shown_samples
from grpo_pipeline.pipelines.training.pipeline import create_pipeline
from grpo_pipeline.pipelines.training.start import build_state, pick_probe_batch
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.dialogue.scores.f1 import f1
from grpo_pipeline.tasks.familiarity import Familiarity

TASK, DATA, NOTHING, SEED = make_task(), make_data(), NoCheckpoint("nowhere"), 3
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
REMEMBERS = {
    "replay": {"capacity": 8, "max_age_steps": 4, "share": 0.5, "importance_cap": 2.0},
    "losses": {
        "entropy": {"target": {"nats": 5.0, "learning_rate": 0.001, "minimum": 0.0, "maximum": 1.0}},
        "kl": {"reference": {"update": "ema", "every_steps": 1, "decay": 0.9}},
    },
    "dynamic_sampling": {"max_retries": 1},
}
ARMS: dict[str, tuple[str, dict[str, Any]]] = {"grpo": ("grpo", {}), "control": ("supervised", {}), "all": ("grpo", REMEMBERS)}
Yielded = tuple[list[dict[str, Any]], Any]


def short(**changes: Any) -> TrainingParams:
    """Return 3 epochs of 2 steps: checkpoints after steps 2, 4 and 6, a gradient report in steps 1, 3 and 5."""
    return training_params(**{"epochs": 3, "batch_size": 4} | changes)


def run(
    name: str = "grpo", *, training: TrainingParams | None = None, resume: str = "never", start: Any = NOTHING, **changes: Any
) -> Iterator[Yielded]:
    arm, options = ARMS[name]
    algorithm, training = algorithm_params(arm, **options, **changes), training or short()
    state = build_state(algorithm, training, SEED, TASK, DATA)
    return nodes.train(algorithm, training, resume, TASK, DATA, state, start, None)


@cache
def whole(name: str = "grpo") -> list[Yielded]:
    """A run of 6 steps that nothing breaks off."""
    return list(run(name))


def rows_of(yielded: list[Yielded], split: str | None = None) -> list[dict[str, Any]]:
    return [row for rows, _ in yielded for row in rows if split in (None, row["split"])]


def last_checkpoint(yielded: list[Yielded]) -> Checkpoint:
    return [checkpoint for _, checkpoint in yielded if checkpoint is not False][-1]


def positions(yielded: list[Yielded]) -> list[tuple[int, int]]:
    """Return the step of each checkpoint, and where in its epoch it stands."""
    return [(found.progress["step"], found.progress["position"]) for _, found in yielded if found is not False]


def timeless(rows: list[dict[str, Any]]) -> list[str]:
    """Return rows as text without what depends on the clock; NaN equals NaN there."""
    return [json.dumps({name: value for name, value in row.items() if name not in TIMES}, sort_keys=True) for row in rows]


def trained_policy(checkpoint: Checkpoint) -> Any:
    policy = TASK.build_policy(5)
    policy.load_state_dict(dict(checkpoint.policy))
    return policy


def test_rows_and_checkpoints_come_at_their_steps():
    yielded = list(run(training=short(checkpoint_every_steps=4, log_every_steps=3)))
    assert positions(yielded) == [(4, 0), (6, 0)]
    # The first yield opens the run; then at steps 3 (log), 4 (checkpoint) and 6 (last).
    assert [len(rows_of([one], "train")) for one in yielded] == [0, 3, 1, 2]
    assert [(r["step"], r["epoch"]) for r in rows_of(yielded, "train")] == [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)]
    val = rows_of(yielded, "val")
    assert [r["step"] for r in val] == [1, 3, 5]
    policy, samples = trained_policy(last_checkpoint(yielded)), short().validation_samples
    expected = TASK.validate(policy, DATA, TASK.rows(DATA, "val"), seed=SEED, n_samples=samples)
    assert {name: val[-1][name] for name in expected} == pytest.approx(expected, nan_ok=True)
    stopped = list(run(training=short(max_steps=3, checkpoint_every_steps=2)))
    assert positions(stopped) == [(2, 0), (3, 1)]
    assert [r["step"] for r in rows_of(stopped, "val")] == [1, 2]  # the end of an epoch, and of the run
    assert "max_steps" not in short().model_dump()
    assert short(max_steps=3).model_dump()["max_steps"] == 3


def test_every_metric_of_a_run_is_there_and_alive():
    rows = rows_of(whole(), "train")
    assert [EVERY_STEP - row.keys() for row in rows] == [set()] * 6
    assert [REPORTED - row.keys() for row in rows[1::2]] == [set()] * 3
    numbers = [value for row in rows for name, value in row.items() if name not in ("split", "value/explained_variance")]
    assert all(math.isfinite(value) for value in numbers)
    assert [row["policy/ratio_first"] for row in rows] == [1.0] * 6
    assert all(0 < row["policy/ess"] <= 1 for row in rows)
    assert all(row["dead/policy"] == row["dead/supervised"] == 0 for row in rows[1::2])
    assert rows[-1]["kl/reference"] > 1e-9
    assert all(row["reward/mean"] == pytest.approx(row["reward/class/mean"], abs=1e-6) for row in rows)
    rl = {name for name in EVERY_STEP if name.startswith(("policy/", "kl/", "value/"))}
    control = rows_of(whole("control"), "train")[0].keys()
    assert EVERY_STEP - rl <= control
    assert control.isdisjoint(rl)


@pytest.mark.parametrize(("name", "stop_after"), [("control", 1), ("all", 5)])
def test_a_resumed_run_equals_an_unbroken_one(tmp_path: Path, name: str, stop_after: int):
    """Also with replayed groups, retries, an adapted entropy weight and a moving reference; before a checkpoint, anew."""
    unbroken, path, kept = whole(name), str(tmp_path / "checkpoint"), []
    generator = run(name)
    for _ in range(stop_after + 1):
        rows, checkpoint = next(generator)
        kept += rows
        CheckpointDataset(path).save(checkpoint)
    generator.close()
    torch.manual_seed(99)  # what a new process brings along
    again = list(run(name, resume="auto", start=CheckpointDataset(path).load()))
    first = rows_of(again)[0]["step"]
    assert first == (stop_after // 2) * 2  # from the last checkpoint, not from the last step
    assert timeless([row for row in kept if row["step"] < first] + rows_of(again)) == timeless(rows_of(unbroken))
    a, b = last_checkpoint(unbroken), last_checkpoint(again)
    assert differing(dict(a.policy), dict(b.policy)) == []
    assert differing(dict(a.optimizer["tensors"]), dict(b.optimizer["tensors"])) == []
    assert (a.optimizer["groups"], a.progress) == (b.optimizer["groups"], b.progress)
    assert list(run(name, resume="auto", start=b)) == [([], False)]  # a finished arm does nothing
    if name == "all":
        assert all(row["replay/groups"] == 2.0 for row in rows_of(again, "train"))
        assert len({row["weight/entropy"] for row in rows_of(unbroken, "train")}) == 6


@pytest.mark.parametrize("proposal", ["none", "uniform", "oracle"])
def test_a_control_with_another_proposal_trains_and_only_the_oracle_sees_lesions(monkeypatch: pytest.MonkeyPatch, proposal: str):
    shown, make = set(), AttentionTask.make_batch

    def record(self: AttentionTask, *args: Any, **options: Any) -> Any:
        batch = make(self, *args, **options)
        shown.add((options.get("generator") is not None, batch.lesion_cells is not None))  # of training; with the lesion
        return batch

    monkeypatch.setattr(AttentionTask, "make_batch", record)
    algorithm = algorithm_params("supervised", proposal=proposal)
    training = short(epochs=1, validate_every_epochs=9)
    pick_probe_batch(algorithm, training, SEED, TASK, DATA)
    yielded = run("control", proposal=proposal, training=training)
    first = next((rows, checkpoint) for rows, checkpoint in yielded if rows)
    assert shown == {(True, proposal == "oracle"), (False, False)}
    yielded = [first, *yielded]
    checkpoint = last_checkpoint(yielded)
    changed = differing(weights(TASK.build_policy(SEED)), dict(checkpoint.policy))
    assert "class_decoder.prior" in changed or proposal == "uniform"
    assert not any(name.startswith(("policy.", "texture.")) for name in changed)
    assert [row["reward/ties_fraction"] == 1.0 for row in rows_of(yielded, "train")] == [proposal == "none"] * 2
    predictions, rollouts, _ = prediction.predict(algorithm, training, SEED, TASK, DATA, export.export_model(TASK, checkpoint))
    assert np.isfinite(predictions["prob"]).all()
    assert len(rollouts) == 5 * training.group_size
    assert ("x0" in rollouts) == (proposal != "none")


def test_export_then_predict_scores_the_test_split():
    checkpoint = last_checkpoint(whole())
    calibration = export.calibrate(SEED, TASK, DATA, checkpoint)
    expected = TASK.calibrate(trained_policy(checkpoint), DATA, TASK.rows(DATA, "val"), seed=SEED)
    assert json.dumps(calibration, sort_keys=True) == json.dumps(expected, sort_keys=True)
    model, knowing = (export.export_model(TASK, checkpoint, calibration, *data) for data in ((), (DATA,)))
    for one in (model, knowing):
        assert differing(dict(checkpoint.policy), dict(one.tensors)) == []
    assert model.config["training"]["step"] == 6
    assert "inputs" not in model.config
    assert Familiarity.from_model(knowing).told == TASK.describe_inputs(trained_policy(checkpoint), DATA).told
    predictions, rollouts, shown = prediction.predict(algorithm_params(), short(), SEED, TASK, DATA, model)
    assert set(predictions["core_id"]) == set(rollouts["core_id"]) == set(shown["core_id"]) == {f"c{i}" for i in range(10, 15)}
    assert len(rollouts) == 5 * short().group_size
    test = TASK.rows(DATA, "test")
    expected = TASK.evaluate(trained_policy(checkpoint), DATA, test, seed=SEED, n_samples=short().group_size)
    np.testing.assert_array_equal(predictions["prob"], expected["prob"])


def test_many_rows_are_sampled_batch_by_batch_and_twelve_of_them_shown(monkeypatch: pytest.MonkeyPatch):
    """Twice the same 64 rows: the second batch has noise of its own."""
    rows = np.tile(np.resize(np.arange(15), 64), 2)
    monkeypatch.setattr(AttentionTask, "rows", lambda *_: rows)
    monkeypatch.setattr(AttentionTask, "evaluate", lambda *_, **__: None)
    policy = trained_policy(last_checkpoint(whole()))
    shake(policy)
    model = replace(export.export_model(TASK, last_checkpoint(whole())), tensors=policy.state_dict())
    _, table, shown = prediction.predict(algorithm_params(), short(group_size=2), SEED, TASK, DATA, model)
    assert table["core_id"].tolist() == [f"c{row:02d}" for row in rows for _ in range(2)]
    batch = TASK.make_batch(DATA, rows[64:])
    generator = step_generator(SEED, 1, stream=Stream.SAMPLE_TABLE)
    drawn = TASK.sample(policy, TASK.encode(policy, batch), 2, temperature=1.0, proposal="policy", generator=generator)
    pd.testing.assert_frame_equal(table[128:].reset_index(drop=True), TASK.tabulate(DATA, batch, drawn))
    assert len(shown["core_id"]) == 12
    assert shown["core_id"].tolist() != [f"c{i:02d}" for i in range(12)]


def test_what_cannot_be_trained_or_exported_is_refused():
    training = short()
    rates = training.optimizer.learning_rates | {"value_headx": 0.1}
    misspelt = training.model_copy(update={"optimizer": training.optimizer.model_copy(update={"learning_rates": rates})})
    with pytest.raises(ValueError, match=r"must name components of the task .*, got 'value_headx'; did you mean value_head\?"):
        build_state(algorithm_params(), misspelt, SEED, TASK, DATA)
    for made in (lambda: export.export_model(TASK, NOTHING, {}), lambda: export.calibrate(SEED, TASK, DATA, NOTHING)):
        with pytest.raises(ValueError, match=r"a checkpoint must be in nowhere, got nothing there; train the arm first"):
            made()


# An untrained language model earns no overlap: a reward that differs between any two replies.
TALK = talk.make_task(reward={"own": {"scripted": {"function": "tiny_rewards:scripted", "weight": 1.0}}})
TALKS = talk.make_data(TALK)
SHOWN = np.array([10, 11])  # with one answer and two
EPSILON = 1e-4  # added to the standard deviation of a group


def shown(arm="grpo", seed=0, **changes):
    algorithm = talk.algorithm_params(arm, **changes)
    return shown_samples.shown_samples(TALK, TALK.build_policy(0), TALKS, SHOWN, algorithm=algorithm, group_size=6, seed=seed)


def test_each_row_has_the_reward_of_its_reply_and_the_advantage_in_its_group():
    table = shown(advantage={"method": "group", "std": "sample", "top_k_ratio": 1.0})
    assert table["example_id"].tolist() == ["e10"] * 6 + ["e11"] * 6
    answers = [TALKS.examples.table["answers"].iloc[row] for row in table["group"]]
    assert table["reward_f1"].tolist() == pytest.approx(f1(list(table["reply"]), answers).tolist())
    assert [round(7 * reward) % 7 for reward in table["reward_scripted"]] == [1] * 6 + [2] * 6  # the number of answers
    assert table["reward"].to_numpy() == pytest.approx(sum(table[f"reward_{n}"] * w for n, w in TALK.rewards.weights.items()))
    for _, group in table.groupby("group"):
        rewards = group["reward"].to_numpy()
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + EPSILON) if np.ptp(rewards) else 0 * rewards
        assert group["advantage"].to_numpy() == pytest.approx(expected)
        assert group["group_is_tied"].all() == (not np.ptp(rewards))
    assert table["advantage"].abs().max() > 0.5
    # An arm that drew nothing in training draws the same here.
    given = ["example_id", "reply", "tokens", "reward"]
    pd.testing.assert_frame_equal(shown("supervised")[given], table[given])
    assert not shown(seed=1)["reply"].equals(table["reply"])


def test_ties_are_those_of_the_samples_own_groups():
    total = torch.tensor([[1.0, 1.0, 1.0], [0.0, 2.0, 1.0]], dtype=torch.float64)
    table = pd.DataFrame({"example_id": ["a"] * 3 + ["b"] * 3})
    found = shown_samples.add_rewards(table, Rewards({"f1": total}, total), Advantages(total - 1, torch.tensor([True, False])))
    assert found["group_is_tied"].tolist() == [True] * 3 + [False] * 3
    assert found["reward"].tolist() == found["reward_f1"].tolist() == [1.0, 1.0, 1.0, 0.0, 2.0, 1.0]


class Shown(AttentionTask):
    shown_temperature = 1.0


def test_rows_of_credited_decisions_say_what_each_has_contributed():
    task = Shown(TASK.model, TASK.rewards, TASK.supervised, TASK.image_size, TASK.device)
    algorithm = algorithm_params(advantage={"credit": "marginal"})
    table = shown_samples.shown_samples(task, task.build_policy(0), DATA, np.arange(4), algorithm=algorithm, group_size=6, seed=0)
    credits = table[[f"credit_{place}" for place in range(task.model.points)]].to_numpy().reshape(4, 6, -1)
    scaled = (credits - credits.mean(1, keepdims=True)) / (credits.std(1, ddof=1, keepdims=True) + EPSILON)
    assert table["advantage"].to_numpy() == pytest.approx(scaled.mean(2).ravel(), abs=1e-9)
    # Of an empty set and a whole one: the sum differs from the reward by the same number for all sets of a core.
    rest = table["reward"].to_numpy().reshape(4, 6) - credits.sum(2)
    assert np.ptp(rest, axis=1).max() < 1e-5


def test_the_probe_moves_a_copy_and_training_starts_from_the_untouched_weights(tmp_path: Path):
    """The catalogue holds values by reference, and the checkpoint on disk under two names."""
    arm = create_pipeline("attention", "grpo", parts=Parts.of(algorithm_params()))
    path, prefix = str(tmp_path / "checkpoint"), "attention.grpo"
    values: dict[str, Any] = {
        "attention.task": TASK, "attention.data": DATA, f"params:{prefix}.algorithm": algorithm_params(),
        "params:attention.training": short(), "params:seed": SEED, "params:resume": "never", "params:executor": SERIAL,
    }  # fmt: skip

    def run_through_kedro(part: Any) -> Any:
        catalog = DataCatalog({name: MemoryDataset(value, copy_mode="assign") for name, value in values.items()})
        for name in arm.datasets() - values.keys():
            is_checkpoint = name in (f"{prefix}.resume_from", f"{prefix}.checkpoint")
            catalog[name] = CheckpointDataset(path) if is_checkpoint else MemoryDataset(copy_mode="assign")
        return SequentialRunner().run(part, catalog)

    made = run_through_kedro(arm.to_outputs(f"{prefix}.initial_state", f"{prefix}.probe.next_state"))
    initial, moved = (made[f"{prefix}.{name}"].load().policy for name in ("initial_state", "probe.next_state"))
    untouched = weights(TASK.build_policy(SEED))
    assert differing(weights(initial), untouched) == []
    assert len(differing(weights(moved), untouched)) > 10
    run_through_kedro(arm.to_nodes(f"{prefix}.train"))
    assert differing(dict(CheckpointDataset(path).load().policy), dict(last_checkpoint(whole()).policy)) == []
