"""Draw training as an animation: the same validation images, from the untrained to the trained policy."""

import io
from collections.abc import Mapping

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from grpo_pipeline.pipelines.reporting.figures import (
    GREEN,
    SKY,
    VERMILLION,
)
from grpo_pipeline.tasks.attention.pipelines.image_sheet import (
    FRAME,
    HEATMAP,
    OUTLINES,
    draw_outline,
)

TIMES_UNIFORM = 32
"""Ends of the scale of an attention map: so many times the uniform probability, and as many times less."""

FRAME_MS, LAST_FRAME_MS = 700, 2500

FRAME_DPI = 80


def training_animation(frames: Mapping[str, np.ndarray], *, arm: str) -> bytes:
    """Return an animated PNG of the frames of a training; nothing where there are none.

    A viewer that shows no animation shows the last frame, which is the file's picture.

    Args:
        frames: ``step`` [f] and the arrays of ``tasks.attention.evaluation.showcase.training_frame``, stacked [f, m, ...].
        arm: name of the arm, for the title.
    """
    if not frames:
        return b""
    from PIL import Image

    # One palette for all frames, as the format wants it: greys, the colours of the maps, those of outlines and points.
    lines = np.array([[*bytes.fromhex(colour[1:])] for colour in (SKY, GREEN, VERMILLION)])
    scale = (colormaps[HEATMAP](np.linspace(0, 1, 140))[:, :3] * 255).round().astype(np.uint8)
    greys = np.linspace(0, 255, 113).round().astype(np.uint8)[:, None].repeat(3, 1)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([greys, scale, lines]).astype(np.uint8).tobytes())
    pictures = [
        Image.fromarray(frame).quantize(palette=palette, dither=Image.Dither.NONE)
        for frame in draw_frames(frames, arm=arm)
    ]
    file = io.BytesIO()
    pictures[-1].save(
        file,
        "PNG",
        save_all=True,
        default_image=True,
        append_images=pictures,
        duration=[FRAME_MS] * (len(pictures) - 1) + [LAST_FRAME_MS],
        loop=0,
    )
    return file.getvalue()


def still_of(animation: bytes) -> bytes:
    """Return the picture of an animated PNG that a viewer without animations shows, as a PNG file."""
    from PIL import Image

    file = io.BytesIO()
    with Image.open(io.BytesIO(animation)) as picture:
        picture.seek(0)
        picture.copy().save(file, "PNG", optimize=True)
    return file.getvalue()


def draw_frames(frames: Mapping[str, np.ndarray], *, arm: str) -> list[np.ndarray]:
    """Draw each frame as pixels, uint8 [H, W, 3]: a column per core, its image with the points above its attention map."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    steps, label = frames["step"], frames["label"][0]
    figure = Figure(figsize=(max(2.1 * len(label), 6.0), 5.5), dpi=FRAME_DPI)
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(2, len(label), squeeze=False)
    figure.subplots_adjust(left=0.01, right=0.99, top=0.88, bottom=0.14, wspace=0.03, hspace=0.03)
    limit = np.log2(TIMES_UNIFORM)
    maps, points = [], []
    for i, (above, below) in enumerate(grid.T):
        above.imshow(frames["image"][0, i], cmap="gray", vmin=0, vmax=255, extent=FRAME)
        for name in ("region", "lesion"):
            colour, dashes, _ = OUTLINES[name]
            draw_outline(above, frames[name][0, i], colour=colour, dashes=dashes)
        looks = {"s": 44, "facecolor": VERMILLION, "edgecolor": "white", "linewidths": 1.2}
        points.append(above.scatter([], [], zorder=3, **looks))
        blank = np.zeros(frames["attention"].shape[2:])
        maps.append(below.imshow(blank, cmap=HEATMAP, vmin=-limit, vmax=limit, extent=FRAME))
        for axes in (above, below):
            axes.set(xlim=(0, 1), ylim=(1, 0), xticks=[], yticks=[])
            axes.set_axis_off()
    bar = figure.colorbar(
        maps[0], cax=figure.add_axes((0.2, 0.11, 0.6, 0.02)), orientation="horizontal"
    )
    bar.set_ticks([-limit, -3, 0, 3, limit], labels=["1/32", "1/8", "1", "8", "32"])
    bar.set_label("probability of a cell as the first point, times that of a uniform policy")
    drawn = []
    # The same figure with other points, maps and titles: nothing but the policy moves.
    for place, step in enumerate(steps):
        figure.suptitle(f"{arm}, validation images, after {step} of {steps[-1]} steps", fontsize=11)
        for i, above in enumerate(grid[0]):
            points[i].set_offsets(frames["points"][place, i])
            maps[i].set_data(times_uniform(frames["attention"][place, i]))
            truth, prob = "cancer" if label[i] == 1 else "benign", float(frames["prob"][place, i])
            above.set_title(f"{truth}, P(cancer) = {prob:.2f}", fontsize=8)
        canvas.draw()  # type: ignore[no-untyped-call]
        pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
        drawn.append(pixels[..., :3].copy())
    return drawn


def times_uniform(attention: np.ndarray) -> np.ndarray:
    """Return log2 of how many times the uniform probability each cell has, [h, w]; the uniform policy knows the region.

    A cell of probability 0 is outside the region, NaN.
    """
    inside = attention > 0
    ratio = np.where(inside, attention * max(1, int(inside.sum())), np.nan)
    return np.asarray(np.log2(ratio))
