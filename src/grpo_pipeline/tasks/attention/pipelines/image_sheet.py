"""Draw a sheet of test images, each with outlines, points, what these contribute and its heatmap; training as an animation."""

import io
from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke

from grpo_pipeline.pipelines.reporting.figures import (
    BLUE,
    GREEN,
    SKY,
    VERMILLION,
    YELLOW,
)
from grpo_pipeline.tasks.attention.data.core_frames import picture_names
from grpo_pipeline.tasks.attention.data.examples import Examples

PAIRS = 2
"""Cores of a line, each an image and a heatmap."""

OUTLINES = {
    "region": (SKY, "-", "region"),
    "bag": (YELLOW, "--", "needle"),
    "lesion": (GREEN, "-", "lesion outline"),
    "read_mask": (VERMILLION, ":", "mask that the prediction reads"),
}

MARKERS = {
    "points_uniform": ("X", "white", "black", "uniform points"),
    "points_trained": ("o", "white", "black", "points of the trained policy"),
}

HEATMAP, HEATMAP_OPACITY, LINE_WIDTH = "inferno", 0.55, 1.5

# Lower reward, none, higher reward: two colours that people with the common colour-vision deficiencies can tell apart.
CONTRIBUTION = LinearSegmentedColormap.from_list("contribution", [VERMILLION, "white", BLUE])

FRAME = (0.0, 1.0, 1.0, 0.0)
"""Of every picture: [0, 1] with y downwards, so that grids of any size lie over each other."""

ACROSS, UP = 24.0, 15.0
"""Of a number from its point, in points of type."""


def image_sheet(showcase: Mapping[str, np.ndarray], *, arm: str) -> Figure:
    """Draw two panels per core: the image with its points, and the mask that they prompt, or without one the heatmap.

    Args:
        showcase: the arrays of docs/attention/artefacts.md; images [m, S, S], masks [m, S, S], heatmap [m, H, W], points
            [m, k, 2] as (x, y), all in the frame [0, 1] x [0, 1] of the square image, and contributions [m, k]; of a model that
            draws lesions ``prompted_mask`` [m, H, W], of one whose class decoder reads a mask ``read_mask`` [m, H, W].
        arm: name of the arm, for the title.
    """
    count = len(showcase["core_id"])
    pairs = min(PAIRS, max(count, 1))
    lines = max(-(-count // pairs), 1)
    figure = Figure(figsize=(6.0 * pairs, 3.35 * lines + 1.7), layout="constrained")
    grid = figure.subplots(lines, 2 * pairs, squeeze=False).reshape(-1, 2)
    scale = contribution_scale(showcase["contribution"])
    shown = "prompted_mask" if "prompted_mask" in showcase else "heatmap"
    name_of_it = shown.replace("_", " ")
    for i, pair in enumerate(grid):
        for axes in pair:
            axes.set_axis_off()
            axes.set_anchor("S")
        if i < count:
            core = {name: array[i] for name, array in showcase.items()}
            draw_core(pair[0], core, scale)
            draw_map(pair[1], core, shown)
    figure.suptitle(f"Held-out cores, points and {name_of_it} of {arm}", fontsize=13)
    figure.legend(
        handles=legend_handles(showcase),
        loc="outside lower center",
        ncols=5,
        fontsize=9,
        frameon=False,
    )
    for colours, label in (
        (ScalarMappable(scale, CONTRIBUTION), "contribution of a point to the reward"),
        (ScalarMappable(Normalize(0, 1), HEATMAP), name_of_it),
    ):
        figure.colorbar(
            colours,
            ax=[grid[0, 0], grid[-1, -1]],  # the span of them all; each more is measured again
            label=label,
            location="bottom",
            aspect=60,
            shrink=0.5,
            pad=0.04 / lines,
            fraction=0.06 / lines,
        )
    return figure


def contribution_scale(contribution: np.ndarray) -> Normalize:
    """Return the scale of the colours, symmetric around 0: one for the whole sheet, so that panels can be compared."""
    known = np.abs(contribution[np.isfinite(contribution)])
    limit = float(known.max()) if known.size and known.max() > 0 else 1.0
    return Normalize(-limit, limit)


def draw_core(axes: Axes, core: Mapping[str, np.ndarray], scale: Normalize) -> None:
    """Draw one core's image, outlines and points, and beside each point of the policy what it contributes."""
    axes.imshow(core["image"], cmap="gray", vmin=0, vmax=255, extent=FRAME, interpolation="nearest")
    for name, colour, dashes, _ in outlines_of(core):
        draw_outline(axes, core[name] > 0.5, colour=colour, dashes=dashes)
    marker, face, edge, _ = MARKERS["points_uniform"]
    axes.scatter(
        core["points_uniform"][:, 0],
        core["points_uniform"][:, 1],
        marker=marker,
        s=36,
        facecolor=face,
        edgecolor=edge,
        linewidths=1.0,
        alpha=0.8,
        zorder=3,
    )
    points, contribution = core["points_trained"], core["contribution"]
    marker, _, edge, _ = MARKERS["points_trained"]
    axes.scatter(
        points[:, 0],
        points[:, 1],
        marker=marker,
        s=46,
        facecolor=CONTRIBUTION(scale(contribution)),
        edgecolor=edge,
        linewidths=1.2,
        zorder=4,
    )
    write_numbers(axes, points, contribution)
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    truth = "cancer" if core["label"] == 1 else "benign"
    axes.set_title(f"{core['core_id']}\n{truth}, P(cancer) = {float(core['prob']):.2f}", fontsize=9)


def outlines_of(arrays: Mapping[str, np.ndarray]) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, colour, dashes and label of each outline; a bag that is the whole region, as without bag masks, has none."""
    for name, looks in OUTLINES.items():
        is_region = name == "bag" and np.array_equal(arrays["bag"], arrays["region"])
        if name in arrays and not is_region:
            yield name, *looks


def write_numbers(axes: Axes, points: np.ndarray, values: np.ndarray) -> None:
    """Write a number [k] beside each point [k, 2], in such directions that the numbers of neighbours part."""
    known = np.isfinite(points).all(axis=1) & np.isfinite(values)
    for point, value, angle in zip(
        points[known], values[known], spread_angles(points[known]), strict=True
    ):
        axes.annotate(
            f"{value:+.2f}",
            xy=(float(point[0]), float(point[1])),
            xytext=(ACROSS * np.cos(angle), -UP * np.sin(angle)),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=9,
            color="white",
            path_effects=[withStroke(linewidth=2, foreground="black")],
            annotation_clip=False,
            zorder=5,
        )


def spread_angles(points: np.ndarray) -> np.ndarray:
    """Return in which direction the number of each point stands, radians [k], from x towards y.

    The directions divide the circle evenly, in the order of the points around their middle, and are turned as near to the
    points' own directions as they can be.
    """
    across, down = (points - points.mean(axis=0)).T if len(points) else np.zeros((2, 0))
    own = np.arctan2(down, across)
    even = np.empty(len(points))
    even[np.argsort(own, kind="stable")] = 2 * np.pi * np.arange(len(points)) / max(len(points), 1)
    turn = np.angle(np.exp(1j * (own - even)).sum())
    return np.asarray(even + turn)


def draw_map(axes: Axes, core: Mapping[str, np.ndarray], shown: str) -> None:
    """Draw one core's ``heatmap`` or ``prompted_mask``, with the outlines of region and lesion to find one's way."""
    axes.imshow(
        np.clip(core[shown], 0, 1),
        cmap=HEATMAP,
        vmin=0,
        vmax=1,
        extent=FRAME,
        interpolation="nearest",
    )
    for name in ("region", "lesion"):
        colour, dashes, _ = OUTLINES[name]
        draw_outline(axes, core[name], colour=colour, dashes=dashes)
    axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
    axes.set_title(shown.replace("_", " "), fontsize=9)


def draw_outline(axes: Axes, mask: np.ndarray, *, colour: str, dashes: str) -> None:
    """Draw the border of a mask, closed along the image's edge; an empty mask has none."""
    if mask.any():
        height, width = mask.shape
        x, y = (np.arange(width + 2) - 0.5) / width, (np.arange(height + 2) - 0.5) / height
        padded = np.pad(mask.astype(float), 1)
        axes.contour(
            x, y, padded, levels=[0.5], colors=[colour], linestyles=[dashes], linewidths=LINE_WIDTH
        )


def legend_handles(showcase: Mapping[str, np.ndarray]) -> list[Line2D]:
    """Return one legend entry per outline and kind of point that these arrays have."""
    markers = [
        Line2D(
            [],
            [],
            linestyle="",
            marker=marker,
            markersize=8,
            markerfacecolor=face,
            markeredgecolor="black",
            label=label,
        )
        for marker, face, _, label in MARKERS.values()
    ]
    return [*outline_handles(showcase), *markers]


def outline_handles(arrays: Mapping[str, np.ndarray]) -> list[Line2D]:
    """Return one legend entry per outline that these arrays have."""
    return [
        Line2D([], [], color=colour, ls=dashes, lw=LINE_WIDTH, label=label)
        for _, colour, dashes, label in outlines_of(arrays)
    ]


def draw_examples(examples: Examples, rows: np.ndarray) -> bytes:
    """Draw the images of these cores of the data side by side with their outlines and labels, as PNG."""
    names = picture_names(examples.table)
    figure = Figure(figsize=(3.0 * len(rows), 3.4), layout="constrained")
    drawn = {name for name in OUTLINES if hasattr(examples, name)}
    for axes, row in zip(figure.subplots(1, len(rows), squeeze=False)[0], rows, strict=True):
        core = {name: np.asarray(getattr(examples, name)[row]) for name in drawn}
        axes.imshow(np.asarray(examples.images[row]), cmap="gray", vmin=0, vmax=255, extent=FRAME)
        for name, colour, dashes, _ in outlines_of(core):
            draw_outline(axes, core[name] > 0, colour=colour, dashes=dashes)
        axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
        axes.set_axis_off()
        label = examples.table["label"].iloc[row]
        axes.set_title(f"{names.iloc[row]}\nlabel {label:g}", fontsize=9)
    figure.legend(
        handles=outline_handles(core),
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
    )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    return file.getvalue()
