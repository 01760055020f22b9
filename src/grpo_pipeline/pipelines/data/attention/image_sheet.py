"""Draw a sheet of test images with outlines, heatmap and points."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from grpo_pipeline.pipelines.reporting.figures import GREEN, ORANGE, SKY, VERMILLION, YELLOW

COLUMNS = 4
OUTLINES = {
    "region": (SKY, "-", "region"),
    "bag": (YELLOW, "--", "needle"),
    "lesion": (GREEN, "-", "lesion outline"),
}
MARKERS = {
    "points_untrained": ("X", "white", "black", "points of the untrained policy"),
    "points_trained": ("o", VERMILLION, "white", "points of the trained policy"),
}
HEATMAP, HEATMAP_OPACITY, LINE_WIDTH = "inferno", 0.55, 1.5


def image_sheet(showcase: Mapping[str, np.ndarray], *, arm: str) -> Figure:
    """Draw one panel per core; the heatmap's opacity is its probability.

    Args:
        showcase: the arrays of docs/architecture.md; images [m, S, S], masks [m, S, S], heatmap [m, H, W] and points
            [m, k, 2] as (x, y), all in the frame [0, 1] x [0, 1] of the square image.
        arm: name of the arm, for the title.
    """
    count = len(showcase["core_id"])
    columns = min(COLUMNS, max(count, 1))
    lines = max(-(-count // columns), 1)
    figure = Figure(figsize=(3.1 * columns, 3.3 * lines + 1.1), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False).ravel()
    for i, axes in enumerate(grid):
        axes.set_axis_off()
        if i < count:
            draw_core(axes, {name: array[i] for name, array in showcase.items()})
    figure.suptitle(f"Held-out cores, points and heatmap of {arm}", fontsize=13)
    figure.legend(
        handles=legend_handles(), loc="outside lower center", ncols=3, fontsize=9, frameon=False
    )
    return figure


def draw_core(axes: Axes, core: Mapping[str, np.ndarray]) -> None:
    """Draw one core; everything lives in the image's own frame, [0, 1] with y downwards, so grids of any size overlay."""
    frame = (0.0, 1.0, 1.0, 0.0)
    heatmap = np.clip(core["heatmap"], 0, 1)
    axes.imshow(core["image"], cmap="gray", vmin=0, vmax=255, extent=frame, interpolation="nearest")
    axes.imshow(
        heatmap,
        cmap=HEATMAP,
        vmin=0,
        vmax=1,
        extent=frame,
        alpha=HEATMAP_OPACITY * heatmap,
        interpolation="nearest",
    )
    for name, (colour, dashes, _) in OUTLINES.items():
        draw_outline(axes, core[name], colour=colour, dashes=dashes)
    for name, (marker, face, edge, _) in MARKERS.items():
        x, y = core[name].T
        axes.scatter(
            x, y, marker=marker, s=46, facecolor=face, edgecolor=edge, linewidths=1.2, zorder=3
        )
    axes.set(xlim=(0, 1), ylim=(1, 0))
    truth = "cancer" if core["label"] == 1 else "benign"
    axes.set_title(f"{core['core_id']}\n{truth}, P(cancer) = {float(core['prob']):.2f}", fontsize=9)


def draw_outline(axes: Axes, mask: np.ndarray, *, colour: str, dashes: str) -> None:
    """Draw the border of a mask, closed along the image's edge; an empty mask has none."""
    if mask.any():
        height, width = mask.shape
        x, y = (np.arange(width + 2) - 0.5) / width, (np.arange(height + 2) - 0.5) / height
        padded = np.pad(mask.astype(float), 1)
        axes.contour(
            x, y, padded, levels=[0.5], colors=[colour], linestyles=[dashes], linewidths=LINE_WIDTH
        )


def legend_handles() -> list[Line2D | Patch]:
    """Return one legend entry per outline, marker and the heatmap."""
    outlines = [
        Line2D([], [], color=colour, ls=dashes, lw=LINE_WIDTH, label=label)
        for colour, dashes, label in OUTLINES.values()
    ]
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
    return [
        *outlines,
        *markers,
        Patch(color=ORANGE, alpha=0.7, label="heatmap: brighter and denser = more probable"),
    ]
