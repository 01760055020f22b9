from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_attention import GRID, SIZE, make_data, make_examples, make_task

from grpo_pipeline.tasks.attention.evaluation import lesion_distances, mean_distance
from grpo_pipeline.tasks.attention.metrics import METRICS


def with_spacing(row_mm, column_mm):
    examples = make_examples()
    return replace(examples, table=examples.table.assign(row_mm=row_mm, column_mm=column_mm))


def brute_force(lesion, row_mm, column_mm):
    """Every cell against every lesion pixel."""
    found = np.empty((GRID, GRID))
    inside = np.argwhere(lesion)
    for i in range(GRID):
        for j in range(GRID):
            at = (int((i + 0.5) * SIZE / GRID), int((j + 0.5) * SIZE / GRID))
            found[i, j] = min(np.hypot((at[0] - y) * row_mm, (at[1] - x) * column_mm) for y, x in inside)
    return found.ravel()


@pytest.mark.parametrize(("row_mm", "column_mm"), [(1.0, 1.0), (0.3, 0.1), (0.05, 2.0)])
def test_distances_are_those_of_every_pair_of_pixels(row_mm, column_mm):
    examples = with_spacing(row_mm, column_mm)
    examples.lesion[5] = np.random.default_rng(2).random((SIZE, SIZE)) > 0.995
    rows = np.array([5, 3, 0, 7])
    found = lesion_distances(examples, rows, GRID).numpy()
    for place, row in enumerate(rows):
        if row:
            np.testing.assert_allclose(found[place], brute_force(examples.lesion[row], row_mm, column_mm), rtol=1e-12)
    assert np.isnan(found[2]).all()  # a benign core


def test_golden():
    """A lesion of one pixel, (4, 4), the centre of cell (0, 0): cell (1, 2) is 8 rows and 16 columns away."""
    examples = with_spacing(0.5, 0.25)
    examples.lesion[3] = False
    examples.lesion[3, 4, 4] = True
    distances = lesion_distances(examples, np.array([3]), GRID)
    assert distances[0, 0] == 0
    assert distances[0, 1 * GRID + 2] == pytest.approx(np.hypot(8 * 0.5, 16 * 0.25))
    actions = torch.tensor([[[0, 6], [6, 6]]])
    assert mean_distance(actions, distances) == pytest.approx(np.hypot(4, 4) * 3 / 4)
    stopped = torch.tensor([[[6, GRID * GRID], [0, GRID * GRID]]])  # the action V is no point
    assert mean_distance(stopped, distances) == pytest.approx(np.hypot(4, 4) / 2)
    assert np.isnan(mean_distance(torch.full((1, 2, 2), GRID * GRID), distances)).all()


def test_unknown_where_there_is_no_spacing_no_outline_or_no_point():
    rows = np.array([3, 5])
    assert lesion_distances(make_examples(), rows, GRID).isnan().all()
    some = lesion_distances(with_spacing([0.1] * 5 + [np.nan] * 10, 0.1), rows, GRID)
    assert some.isnan().all(1).tolist() == [False, True]
    assert np.isnan(mean_distance(torch.zeros(2, 1, 0, dtype=torch.int64), some)).all()


def test_prediction_rows_and_the_metric():
    task, data = make_task(), make_data(with_spacing(0.1, 0.2))
    rows = task.rows(data, "test")
    table = task.evaluate(task.build_policy(0), data, rows, seed=0, sets=3)
    known = table["lesion_distance_mm"].notna()
    assert known.equals(table["lesion_hit"].notna())
    assert (table.loc[known & (table["lesion_hit"] == 1), "lesion_distance_mm"] == 0).all()
    means = table.groupby("rule")["lesion_distance_mm"].mean()
    assert means["oracle"] < means["uniform"]
    policy = table[table["rule"] == "policy"].reset_index(drop=True)
    value = METRICS["lesion_distance_mm"](policy, np.ones((1, len(policy))))[0]
    assert value == pytest.approx(np.nanmean(policy["lesion_distance_mm"]))


def test_the_metric_is_undefined_without_spacing_and_for_older_tables():
    task, data = make_task(), make_data()
    table = task.evaluate(task.build_policy(0), data, task.rows(data, "test"), seed=0, sets=1)
    assert table["lesion_distance_mm"].isna().all()
    for rows in (table, table.drop(columns="lesion_distance_mm")):
        assert np.isnan(METRICS["lesion_distance_mm"](rows, np.ones((2, len(rows))))).all()
