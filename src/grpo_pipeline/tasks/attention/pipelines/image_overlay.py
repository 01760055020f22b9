"""Draw a heatmap and points over an image, pixel by pixel of that image."""

import numpy as np
from matplotlib import colormaps
from PIL import Image, ImageColor, ImageDraw

from grpo_pipeline.pipelines.reporting.figures import VERMILLION
from grpo_pipeline.tasks.attention.pipelines.image_sheet import HEATMAP, HEATMAP_OPACITY

THUMBNAIL = 320

COLOURS = np.round(255 * colormaps[HEATMAP](np.arange(256))[:, :3]).astype(np.float32)


def draw_overlay(image: np.ndarray, heatmap: np.ndarray | None, points: np.ndarray) -> np.ndarray:
    """Return the picture, uint8 [H, W, 3]; the opacity of the heatmap is its probability, as on the report's page.

    Args:
        image: grey levels, uint8 [H, W].
        heatmap: probability, float [H, W]; None shows the image as it is.
        points: (x, y) in pixels, [k, 2]; frame of ``tasks/attention/data/grey.py``. NaN is no point.
    """
    chance = np.zeros(image.shape) if heatmap is None else np.clip(heatmap, 0, 1)
    opacity = (HEATMAP_OPACITY * chance)[..., None].astype(np.float32)
    colours = COLOURS[np.round(255 * chance).astype(np.uint8)]
    blended = (1 - opacity) * image[..., None].astype(np.float32) + opacity * colours
    picture = Image.fromarray(np.round(blended).astype(np.uint8))
    draw_points(picture, points[~np.isnan(points).any(axis=1)])
    return np.asarray(picture)


def draw_points(picture: Image.Image, points: np.ndarray) -> None:
    """Draw points as filled circles with a white edge, as large as the picture makes readable."""
    radius = max(2.0, min(picture.size) / 60)
    canvas = ImageDraw.Draw(picture)
    # Pillow's pixel (c, r) has its centre at (c, r), ours at (c + 0.5, r + 0.5).
    for x, y in np.asarray(points, np.float64) - 0.5:
        box = (x - radius, y - radius, x + radius, y + radius)
        canvas.ellipse(box, fill=ImageColor.getrgb(VERMILLION), outline=(255, 255, 255))


def shrink(picture: np.ndarray) -> np.ndarray:
    """Return a picture whose longer side has at most 320 pixels."""
    small = Image.fromarray(picture)
    small.thumbnail((THUMBNAIL, THUMBNAIL))
    return np.asarray(small)
