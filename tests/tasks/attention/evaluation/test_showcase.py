import numpy as np
import pytest
import torch
from tiny_attention import GRID, make_data, make_task, shake

from grpo_pipeline.tasks.attention.batch import region_cells
from grpo_pipeline.tasks.attention.evaluation.point_rules import as_rollouts
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.task import AttentionTask

ROWS = np.arange(10, 15)


def make_policy(task: AttentionTask, seed: int = 1) -> AttentionModel:
    policy = task.build_policy(0)
    shake(policy, seed=seed)
    return policy


def test_what_is_shown_belongs_together_and_a_frame_shows_the_policy_as_it_is_now():
    task, data, rows = make_task(), make_data(), ROWS[[3, 0]]
    before, after = make_policy(task), make_policy(task, seed=2)
    shown = task.showcase(before, data, rows, seed=0)
    assert shown["core_id"].tolist() == ["c13", "c10"]
    np.testing.assert_array_equal(shown["lesion"], data.examples.lesion[rows])
    np.testing.assert_allclose(shown["attention"].sum((1, 2)), 1.0, atol=1e-5)
    cells = region_cells(torch.as_tensor(shown["region"]), task.grid).numpy()
    assert (shown["attention"].reshape(2, -1)[~cells] == 0).all()
    first, again, other = (task.training_frame(policy, data, rows, seed=0) for policy in (before, before, after))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert {name for name in first if not torch.equal(first[name], other[name])} >= {"attention", "points", "prob"}
    for name in ("image", "lesion"):  # 32 pixels: as they are
        np.testing.assert_array_equal(first[name], getattr(data.examples, {"image": "images"}.get(name, name))[rows])
    np.testing.assert_allclose(first["attention"], shown["attention"], rtol=1e-6)
    for points in (shown["points_uniform"], shown["points_trained"], first["points"].numpy()):
        assert points.shape == (2, 3, 2)
        column, row = (points * task.grid).astype(int).transpose(2, 0, 1)
        assert np.take_along_axis(cells, row * task.grid + column, 1).all()


@pytest.mark.parametrize("stop", [None, {"min_points": 1}], ids=["points", "stop"])
def test_a_contribution_is_what_the_reward_of_the_set_loses_without_the_point(stop):
    """Sets of k - 1 points are decoded one by one, without a mask, and rewarded as sets of their own."""
    task, data, rows = make_task(policy={"stop": stop}), make_data(), ROWS[:4]
    policy = make_policy(task)
    if stop is not None:
        policy.stop.log_odds.bias.data += 8.0
    shown = task.showcase(policy, data, rows, seed=0)
    placed = np.isfinite(shown["points_trained"]).all(2)
    np.testing.assert_array_equal(np.isfinite(shown["contribution"]), placed)
    assert (stop is None) == placed.all()
    for place, row in enumerate(rows):
        batch = task.make_batch(data, np.array([row]))
        context, grouped = task.encode(policy, batch), task.replicate(batch, 1)
        at = [int(y * GRID) * GRID + int(x * GRID) for x, y in shown["points_trained"][place][placed[place]]]

        def earned(cells: list[int], batch=batch, context=context, grouped=grouped) -> float:
            sets = as_rollouts(torch.tensor(cells, dtype=torch.int64)[None, None])
            parts, weights = task.reward(grouped, sets, task.decode(policy, context, sets, batch))
            if stop is not None:
                parts["points"] = torch.tensor(-len(cells) / 3)
            return sum(weight * float(parts[name]) for name, weight in weights.items())

        differences = [earned(at) - earned(at[:left_out] + at[left_out + 1 :]) for left_out in range(len(at))]
        np.testing.assert_allclose(shown["contribution"][place][placed[place]], differences, atol=1e-5)
        assert np.abs(differences).max() > 1e-3
