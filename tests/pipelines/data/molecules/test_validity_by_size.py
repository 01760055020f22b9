import numpy as np
import pytest
from sampled_graphs import all_arms, evaluation_params

from grpo_pipeline.pipelines.data.molecules.figures import (
    MOST_SIZES,
    gather_molecules,
    group_label,
    size_groups,
    validity_by_size,
)
from grpo_pipeline.tasks.molecules.metrics import build_suite


def test_lines_are_the_shares_of_each_size():
    axes = validity_by_size(gather_molecules(all_arms(), evaluation_params(), suite=build_suite({}))).axes[0]
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["start", "supervised", "grpo", "eager"]
    rows = all_arms()["grpo"]
    shares = rows[rows["rule"] == "policy"].groupby("n_atoms")["is_valid"].mean()
    line, _, (bars,) = axes.containers[2]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == [str(size) for size in shares.index]
    assert list(line.get_ydata()) == pytest.approx(list(shares))
    for segment, share in zip(bars.get_segments(), shares, strict=True):
        assert segment[0, 1] <= share <= segment[1, 1]


def test_many_sizes_become_groups_of_about_equally_many_graphs():
    sizes = np.random.default_rng(0).integers(5, 40, size=5000)
    groups = size_groups(sizes)
    assert len(groups) == MOST_SIZES
    covered = [size for low, high in groups for size in range(low, high + 1)]
    assert covered == list(range(5, 40))
    counts = [((sizes >= low) & (sizes <= high)).sum() for low, high in groups]
    # 35 sizes in 12 groups: 2 to 4 sizes each, 143 graphs a size.
    assert max(counts) < 2.5 * min(counts)
    assert [group_label(group) for group in ((9, 9), (9, 12))] == ["9", "9 to 12"]
