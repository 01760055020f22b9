import math

import pandas as pd
from matplotlib.colors import to_hex

from grpo_pipeline.pipelines.gradient_flow import COLOURS, WRONG, ZERO, norm_heatmap

TABLE = pd.DataFrame(
    [
        ("supervised", "encoder", 1e-2, "gradient", True),
        ("supervised", "head", 0.0, "none", True),
        ("policy", "encoder", 1.0, "none", False),
        ("policy", "head", 1e-4, "gradient", True),
        ("reward", "f1", 0.0, "none", True),
        ("reward", "bleu", math.nan, "none", False),
    ],
    columns=["term", "component", "grad_norm", "expected", "agrees"],
)


def cells(axes):
    """Return (column, line) -> the patches of that cell."""
    found = {}
    for patch in axes.patches:
        place = (round(patch.get_x() + 0.48), round(patch.get_y() + 0.46))
        found.setdefault(place, []).append(patch)
    return found


def words(axes):
    return {(text.get_position()[0], text.get_position()[1]): text.get_text() for text in axes.texts}


def ticks(axes):
    return [label.get_text() for label in axes.get_xticklabels()], [label.get_text() for label in axes.get_yticklabels()]


def test_each_cell_stands_at_its_term_and_component():
    losses, rewards, _ = norm_heatmap(TABLE).axes
    assert ticks(losses) == (["encoder", "head"], ["supervised", "policy"])
    assert ticks(rewards) == (["f1", "bleu"], ["reward"])
    assert words(losses) == {(0, 0): "1.0e-02", (1, 0): "0", (0, 1): "1.0e+00\nexpected none", (1, 1): "1.0e-04"}
    assert words(rewards) == {(0, 0): "0", (1, 0): "graph\nexpected none"}
    assert losses.get_ylim() == (1.5, -0.5)  # the first term is at the top


def test_colour_is_the_logarithm_and_zero_has_none():
    losses = norm_heatmap(TABLE).axes[0]
    found = cells(losses)
    # log10 of 1e-4, 1e-2 and 1: the ends and the middle of the scale
    for place, share in (((1, 1), 0.0), ((0, 0), 0.5), ((0, 1), 1.0)):
        assert to_hex(found[place][0].get_facecolor()) == to_hex(COLOURS(share)), place
        assert found[place][0].get_hatch() is None
    assert found[1, 0][0].get_hatch() == "///"
    assert to_hex(found[1, 0][0].get_facecolor()) == to_hex(ZERO["facecolor"])


def test_what_is_not_as_expected_is_framed():
    losses, rewards, _ = norm_heatmap(TABLE).axes
    framed = {
        (axes, place)
        for axes in (losses, rewards)
        for place, patches in cells(axes).items()
        if any(to_hex(patch.get_edgecolor()) == to_hex(WRONG["edgecolor"]) for patch in patches)
    }
    assert framed == {(losses, (0, 1)), (rewards, (1, 0))}
