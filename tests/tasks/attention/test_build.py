import numpy as np
import pytest
from tiny_attention import GRID, SIZE, make_examples, make_task

from grpo_pipeline.tasks.attention.build import FeatureSet, join_features


def test_the_task_has_the_size_of_the_images():
    task = make_task()
    assert (task.image_size, task.grid) == (SIZE, GRID)


def test_refuses_a_core_with_fewer_cells_than_points():
    examples = make_examples()
    for row in (4, 9):
        examples.region[row] = False
        examples.region[row, :8, :16] = True  # 8 x 16 pixels hold the centres of two cells
    message = (
        r"region of core 'c04' must cover at least attention.model.points = 3 cells of the 4 x 4 grid, got 2 "
        r"\(and 1 more such cores\); use fewer points, a smaller patch_size, or a larger region mask"
    )
    with pytest.raises(ValueError, match=message):
        make_task(examples)
    assert make_task(examples, points=2).model.points == 2


def test_refuses_a_cost_per_point_without_a_stop():
    with pytest.raises(ValueError, match=r"attention.reward.points_weight must be 0 with attention.model.stop = null, got 0.5"):
        make_task(reward={"points_weight": 0.5})
    assert make_task(reward={"points_weight": 0.5}, stop={"min_points": 2}).rewards.points_weight == 0.5


def test_features_travel_with_their_examples():
    examples, values = make_examples(), np.zeros((15, 1), np.float32)
    data = join_features(examples, FeatureSet("key", values))
    assert data.examples is examples
    assert data.features is values
    assert data.reference_logits is None
