"""The loop with sets of one to k points: what is never placed has no influence, and everything beside it still works."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from loss_terms import mixed_losses
from tiny_attention import algorithm_params, gather, make_batch, make_data, make_state, make_task, shake, training_params
from torch import Tensor

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.step import policy_metrics
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.training import export, nodes, prediction
from grpo_pipeline.tasks.attention.inference.predictor import CorePrediction
from grpo_pipeline.tasks.attention.inference.score_tables import point_rows, score_row
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.pipelines.image_overlay import draw_overlay
from grpo_pipeline.tasks.attention.task import AttentionTask

CELLS = 16


def stopping_task(**changes: Any) -> AttentionTask:
    return make_task(policy={"stop": {"min_points": 1}}, **changes)


def moved_state(task: AttentionTask, **algorithm: Any) -> TrainState:
    """Return a state whose policy is not uniform and stops after one, two or three points."""
    state = make_state(task, make_data(), algorithm_params(**algorithm), training_params(epochs=2, batch_size=4))
    shake(state.policy)
    with torch.no_grad():
        state.policy.stop.log_odds.weight.mul_(0.3)
        state.policy.stop.log_odds.bias.zero_()
    return state


def collected(task: AttentionTask, state: TrainState, *, garbage: bool) -> Experience:
    """Run the collect half; with garbage, arbitrary cells stand where a sample has stopped."""

    def spoilt(drawn: Rollouts) -> Rollouts:
        noise = torch.randint(0, CELLS, drawn.actions.shape, generator=torch.Generator().manual_seed(9))
        return replace(drawn, actions=torch.where(drawn.is_valid | (not garbage), drawn.actions, noise))

    return gather(algorithm_params(), training_params(group_size=8), task, state, make_batch(task), spoilt)


def gradients(task: AttentionTask, state: TrainState, experience: Experience) -> dict[str, Tensor]:
    terms = mixed_losses(algorithm_params(), training_params(), task, state, experience, 0)[0].terms
    assert terms.keys() == {"policy", "entropy", "kl", "value", "supervised"}
    state.policy.zero_grad()
    torch.stack(list(terms.values())).sum().backward()
    return {name: p.grad for name, p in state.policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("decoder", ["glimpse", "global"])
def test_what_stands_after_a_stop_has_no_influence(decoder: str):
    reward = {"diversity": {"weight": 0.1}, "activation": {"weight": 0.1}, "boundary": {"weight": 0.1, "margin": 0.3}}
    task = stopping_task(class_decoder={"kind": decoder}, reward=reward | {"points": {"weight": 0.1}})
    state = moved_state(task)
    clean, noisy = (collected(task, state, garbage=garbage) for garbage in (False, True))
    assert not torch.equal(clean.rollouts.actions, noisy.rollouts.actions)
    assert torch.equal(clean.outcomes.class_logits, noisy.outcomes.class_logits)
    assert torch.equal(clean.outcomes.mask_logits, noisy.outcomes.mask_logits)
    assert set(clean.rewards.components) == {"class", "heatmap", "diversity", "activation", "boundary", "points"}
    assert all(torch.equal(part, noisy.rewards.components[name]) for name, part in clean.rewards.components.items())
    assert torch.equal(clean.advantages.values, noisy.advantages.values)
    algorithm, training = algorithm_params(), training_params()
    scored = [(mixed_losses(algorithm, training, task, state, e, 0)[1], e) for e in (clean, noisy)]
    statistics = [policy_metrics.diagnose(algorithm.losses.policy, *one) for one in scored]
    assert statistics[0] == pytest.approx(statistics[1], nan_ok=True, abs=0)
    a, b = (gradients(task, state, e) for e in (clean, noisy))
    assert [name for name in a if not torch.equal(a[name], b[name])] == []
    assert float(a["stop.log_odds.weight"].abs().max()) > 0
    tables = [task.tabulate(make_data(), clean.batch, e.rollouts) for e in (clean, noisy)]
    assert tables[0].equals(tables[1])
    context, grouped = task.encode(state.policy, make_batch(task)), task.replicate(make_batch(task), 1)
    cells = torch.tensor([[[5, CELLS, CELLS]]]).expand(4, 1, 3)  # a set of one point is decoded as one point
    sets = [Rollouts(cells[..., :n], torch.zeros(4, 1, n), torch.ones(4, 1, n, dtype=torch.bool)) for n in (3, 1)]
    padded, alone = (task.decode(state.policy, context, rollouts, grouped) for rollouts in sets)
    torch.testing.assert_close(padded.class_logits, alone.class_logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(padded.mask_logits, alone.mask_logits, atol=1e-5, rtol=0)


@torch.no_grad()
def test_sets_of_every_size_are_drawn_and_the_reference_scores_them_from_its_store():
    task, data = stopping_task(), make_data()
    rollouts = collected(task, moved_state(task), garbage=False).rollouts
    used = (rollouts.actions < CELLS).sum(-1)
    assert set(used.flatten().tolist()) == {1, 2, 3}
    assert torch.equal(rollouts.is_valid.sum(-1), (used + 1).clamp(max=3))
    assert torch.count_nonzero(rollouts.logprobs[~rollouts.is_valid]) == 0
    table = task.tabulate(data, make_batch(task), rollouts)
    assert table[["x0", "x1", "x2"]].notna().sum(axis=1).tolist() == used.flatten().tolist()
    reference, rows = moved_state(task).policy, np.array([7, 0, 12, 3])
    stored = task.with_reference(data, reference)
    direct = task.score_reference(reference, task.make_batch(data, rows), rollouts, temperature=0.7)
    from_store = task.score_reference(task.build_policy(9), task.make_batch(stored, rows), rollouts, temperature=0.7)
    torch.testing.assert_close(from_store.logprobs, direct.logprobs, atol=1e-5, rtol=0)
    torch.testing.assert_close(from_store.log_probs_full, direct.log_probs_full, atol=1e-5, rtol=0)
    assert direct.log_probs_full.shape == (4, CELLS + 4)


REPLAYED = {
    "replay": {"capacity": 32, "max_age_steps": 5, "share": 0.5, "importance_cap": 2.0},
    "losses": {"kl": {"estimator": "k3"}, "value": {"clip": 0.2}},
    "dynamic_sampling": {"max_retries": 2}, "advantage": {"baseline": "value"},
}  # fmt: skip


def test_an_arm_with_stops_and_options_trains_is_exported_and_predicts():
    task, data = stopping_task(reward={"points": {"weight": 0.1}}), make_data()
    algorithm, training = algorithm_params(**REPLAYED), training_params(epochs=2, batch_size=4)
    given = algorithm, training, "never", task, data, moved_state(task, **REPLAYED), NoCheckpoint("nowhere"), None
    yielded = list(nodes.train(*given))
    trained, watched = ([row for rows, _ in yielded for row in rows if row["split"] == split] for split in ("train", "val"))
    assert [(row["policy/ratio_first"], row.get("replay/groups")) for row in trained] == [(1.0, None), *[(1.0, 2.0)] * 3]
    assert all(-1.0 <= row["reward/points/mean"] <= -1 / 3 for row in trained)
    assert all(1.0 <= row["points_used"] <= 3.0 for row in watched)
    model = export.export_model(task, [checkpoint for _, checkpoint in yielded if checkpoint is not False][-1])
    AttentionModel.from_description(model.config).load_state_dict(dict(model.tensors))
    predictions, rollouts, shown = prediction.predict(algorithm, training, 0, task, data, model)
    used = predictions.groupby("rule")["points_used"].mean()
    assert used[["uniform", "oracle", "centre", "fixed", "none"]].tolist() == [3.0, 3.0, 3.0, 3.0, 0.0]
    assert 1.0 < used["policy"] < 3.0
    assert rollouts[["x1", "x2"]].isna().any(axis=None)
    assert np.isfinite(shown["points_trained"][:, 0]).all()


def test_a_prediction_lists_the_points_that_were_placed():
    points = np.array([[[4.0, 9.0], [np.nan, np.nan], [np.nan, np.nan]], [[1.0, 2.0], [8.0, 5.0], [np.nan, np.nan]]])
    values, flat = np.array([0.2, 0.4]), np.zeros((16, 16), np.uint8)
    prediction = CorePrediction("c", "p", values, values, 0.1, points, np.zeros((16, 16), np.float32), flat, None, (0.5, 0.25))
    listed = [[0, 0, 4.0, 9.0, 1.0, 4.5], [1, 0, 1.0, 2.0, 0.25, 1.0], [1, 1, 8.0, 5.0, 2.0, 2.5]]
    assert point_rows(prediction)[["set", "point", "x", "y", "x_mm", "y_mm"]].values.tolist() == listed
    assert score_row(prediction, heatmap="c")["n_points"] == 1  # of the set that the summary comes from
    drawn, alone = (draw_overlay(flat, prediction.heatmap, points[0, :n]) for n in (3, 1))
    assert np.array_equal(drawn, alone)
    assert drawn.any()
