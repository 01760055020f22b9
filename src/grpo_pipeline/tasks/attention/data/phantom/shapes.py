"""Draw shapes of a phantom core: gland, needle, lesion, look-alikes, shadow. Unit: image sides; x right, y down."""

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.special import expit

NEEDLE_CLEARANCE = 0.25


@dataclass(frozen=True)
class Needle:
    """A straight needle trace: centre (x, y), direction in radians, full length and full width, in image sides."""

    x: float
    y: float
    angle: float
    length: float
    width: float


def pixel_grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Compute x and y of the pixel centres in image sides, float32 [size, size] each."""
    centres = (np.arange(size, dtype=np.float32) + 0.5) / size
    return np.meshgrid(centres, centres)


def blob(
    grid: tuple[np.ndarray, np.ndarray],
    centre: tuple[float, float],
    axes: tuple[float, float],
    angle: float,
    *,
    wobble: np.ndarray,
) -> np.ndarray:
    """Compute the level of an irregular ellipse at every pixel, float32 [H, W]: below 1 inside, 1 on the outline.

        level = |R(-angle) (p - centre) / axes| / (1 + sum_k a_k cos(k t + phi_k)),   k = 2, 3, ...

    Args:
        grid: x and y of the pixels.
        centre: centre (x, y).
        axes: semi-axes before the outline is perturbed.
        angle: direction of the first axis in radians.
        wobble: [K, 2], amplitude and phase of the harmonics 2 .. K + 1.
    """
    dx, dy = grid[0] - centre[0], grid[1] - centre[1]
    u = (dx * np.cos(angle) + dy * np.sin(angle)) / axes[0]
    v = (-dx * np.sin(angle) + dy * np.cos(angle)) / axes[1]
    theta = np.arctan2(v, u)
    outline = np.ones_like(theta)
    for order, (amplitude, phase) in enumerate(wobble, start=2):
        outline += amplitude * np.cos(order * theta + phase)
    return np.asarray((np.hypot(u, v) / outline).astype(np.float32))


def draw_wobble(rng: Generator, *, orders: int, amplitude: float) -> np.ndarray:
    """Draw harmonics of an outline, amplitude falling with the order, float64 [orders, 2]."""
    amplitudes = rng.uniform(-amplitude, amplitude, orders) / np.arange(1, orders + 1)
    return np.stack([amplitudes, rng.uniform(0, 2 * np.pi, orders)], axis=1)


def draw_gland(rng: Generator, grid: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Draw the level of a gland outline that covers roughly 40% to 70% of the image, float32 [H, W]."""
    centre = (0.5 + rng.uniform(-0.03, 0.03), 0.5 + rng.uniform(-0.03, 0.03))
    axes = (rng.uniform(0.42, 0.47), rng.uniform(0.36, 0.43))
    return blob(
        grid,
        centre,
        axes,
        rng.uniform(-0.2, 0.2),
        wobble=draw_wobble(rng, orders=4, amplitude=0.07),
    )


def draw_needle(rng: Generator, gland: np.ndarray, grid: tuple[np.ndarray, np.ndarray]) -> Needle:
    """Draw a needle whose centre lies well inside the gland; it is drawn before and regardless of any lesion."""
    inner = np.flatnonzero(gland < 1 - NEEDLE_CLEARANCE)
    pixel = rng.choice(inner)
    angle = rng.choice([-1, 1]) * rng.uniform(np.pi / 9, np.pi / 4)
    x, y = float(grid[0].flat[pixel]), float(grid[1].flat[pixel])
    return Needle(
        x, y, float(angle), float(rng.uniform(0.42, 0.62)), float(rng.uniform(0.047, 0.078))
    )


def needle_frame(
    needle: Needle, grid: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the position along and across the needle at every pixel, in image sides, [H, W] each."""
    dx, dy = grid[0] - needle.x, grid[1] - needle.y
    cos, sin = np.cos(needle.angle), np.sin(needle.angle)
    return dx * cos + dy * sin, -dx * sin + dy * cos


def needle_mask(needle: Needle, grid: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Mark the needle trace, bool [H, W]."""
    along, across = needle_frame(needle, grid)
    return np.asarray((np.abs(along) <= needle.length / 2) & (np.abs(across) <= needle.width / 2))


def draw_lesion(
    rng: Generator,
    region: np.ndarray,
    needle: Needle,
    grid: tuple[np.ndarray, np.ndarray],
    *,
    share: float,
) -> np.ndarray:
    """Draw a lesion that crosses the needle inside the region and covers ``share`` of it, bool [H, W].

    The centre is a pixel of the trace inside the region. The outline is the level of an irregular ellipse that encloses exactly
    the wanted number of region pixels. So a lesion at the capsule bulges inwards instead of losing area.
    """
    trace = np.flatnonzero(region & needle_mask(needle, grid))
    pixel = rng.choice(trace)
    centre = (float(grid[0].flat[pixel]), float(grid[1].flat[pixel]))
    elongation = rng.uniform(1.0, 1.7)
    level = blob(
        grid,
        centre,
        (elongation, 1.0),
        rng.uniform(0, np.pi),
        wobble=draw_wobble(rng, orders=4, amplitude=0.12),
    )
    inside = level[region]
    wanted = max(1, round(share * inside.size))
    return np.asarray(region & (level <= np.partition(inside, wanted - 1)[wanted - 1]))


def draw_patch(
    rng: Generator, region: np.ndarray, grid: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Draw the level of a benign hypoechoic area centred in the region, float32 [H, W]; its size is that of a lesion."""
    pixel = rng.choice(np.flatnonzero(region))
    centre = (float(grid[0].flat[pixel]), float(grid[1].flat[pixel]))
    axes = tuple(rng.uniform(0.08, 0.19, 2))
    return blob(
        grid, centre, axes, rng.uniform(0, np.pi), wobble=draw_wobble(rng, orders=4, amplitude=0.12)
    )


def draw_shadow(rng: Generator, grid: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Draw a shadow below a reflector, float32 [H, W] in [0, 1]: a soft-edged column that widens with depth."""
    centre, top = rng.uniform(0.15, 0.85), rng.uniform(0.1, 0.5)
    half_width = rng.uniform(0.03, 0.08) + 0.06 * np.clip(grid[1] - top, 0, None)
    inside = expit((half_width - np.abs(grid[0] - centre)) / 0.012)
    return np.asarray((inside * expit((grid[1] - top) / 0.02)).astype(np.float32))
