"""Find letters, callipers and scale marks that a scanner has drawn into an image, and fill them with what lies around.

Drawn marks are thinner than what is around them, as bright all along, sharp on both sides, and regular; tissue is at most some
of that. Each rule asks for one regularity more: letters stand on a line, callipers have four equal arms, ticks are alike. They
are conservative: a mark that meets none stays (docs/data.md names those that do).

Lengths are in units of the image's longer side / 256, at least one pixel.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import ndimage

STROKES = ((70.0, 105.0), (45.0, 180.0))
"""Grey levels by which a stroke is brighter than what is wider around it, and its least level: dull ones must stand out more."""
CONTRAST = 60.0
"""Grey levels between the mean of a mark and the mean of its surroundings."""
GLYPH, WIDEST, WORD = (2.5, 16.0), 18.0, 80.0
"""Lowest and highest letter; the widest, two that touch; the widest word of letters that touch."""
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1))
ARMS = (3, 4, 5)
"""Lengths of a calliper's arms in pixels, beside the same in units of the image."""
EIGHT = np.ones((3, 3), bool)
BLACK = 12
"""Highest grey level of what a mark in a corner stands on."""
MOST = 2000
"""Strokes that are compared with each other; more are speckle."""


@dataclass(frozen=True)
class BurntIn:
    """Pixels that are drawn: ``drawn`` are to be filled, and no point may fall on ``blocked``; bool [H, W] each.

    ``blocked`` has the gaps between letters too, and leaves out the dotted lines between callipers, which cross lesions.
    """

    drawn: np.ndarray
    blocked: np.ndarray


@dataclass(frozen=True)
class Strokes:
    """Connected thin bright strokes of an image: number of each pixel's [H, W], 0 for none, and of each its box and more, [n].

    ``contrast`` is its mean level minus that of the pixels around, ``on_black`` the share of these that are black.
    """

    labels: np.ndarray
    top: np.ndarray
    left: np.ndarray
    height: np.ndarray
    width: np.ndarray
    contrast: np.ndarray
    on_black: np.ndarray

    def pixels(self, chosen: np.ndarray) -> np.ndarray:
        """Return the pixels of the chosen strokes, bool [n] -> [H, W]."""
        return np.asarray(np.concatenate([[False], chosen])[self.labels])


def find_burnt_in(image: np.ndarray) -> BurntIn:
    """Return the drawn pixels of grey levels uint8 [H, W]."""
    unit = max(1.0, max(image.shape) / 256)
    levels = image.astype(np.float32)
    marks, centres = find_crosses(levels, unit)
    for rise, least in STROKES:
        strokes = find_strokes(levels, unit, rise=rise, least=least)
        found = is_letter(strokes, unit) | is_tick(strokes, unit) | in_corner(strokes)
        marks = marks | strokes.pixels(found | is_beside(strokes, centres, unit))
    # The blurred edge of a stroke belongs to it.
    edge = ndimage.iterate_structure(ndimage.generate_binary_structure(2, 1), max(1, round(unit)))
    drawn = ndimage.binary_dilation(marks, edge)
    gap = 2 * round(3 * unit) + 1
    blocked = ndimage.binary_closing(np.pad(drawn, gap), np.ones((gap, gap), bool))[
        gap:-gap, gap:-gap
    ]
    return BurntIn(drawn | dotted_lines(levels, centres, unit), blocked | drawn)


def find_strokes(levels: np.ndarray, unit: float, *, rise: float, least: float) -> Strokes:
    """Return what a white top-hat leaves: bright and thinner than about five units.

    Args:
        levels: [H, W].
        unit: pixels.
        rise: least height above what is wider around.
        least: grey level.
    """
    size = 2 * round(1.5 * unit + 1.5) + 1
    hat = levels - ndimage.grey_opening(levels, size=(size, size))
    labels, n = ndimage.label((hat >= rise) & (levels >= least), EIGHT)
    if n == 0:
        none = np.empty(0)
        return Strokes(labels, none, none, none, none, none, none)
    boxes = ndimage.find_objects(labels)
    sides = np.array([[s.start for s in box] + [s.stop - s.start for s in box] for box in boxes])
    index = np.arange(1, n + 1)
    around = np.where(labels == 0, ndimage.grey_dilation(labels, size=(5, 5)), 0)
    count = np.bincount(around.ravel(), minlength=n + 1)[1:]
    outside, black = (
        np.bincount(around.ravel(), values.ravel(), minlength=n + 1)[1:] / np.maximum(count, 1)
        for values in (levels, levels <= BLACK)
    )
    contrast = np.where(count > 0, ndimage.mean(levels, labels, index) - outside, 0.0)
    top, left, height, width = sides.T
    return Strokes(labels, top, left, height, width, contrast, black)


def is_letter(strokes: Strokes, unit: float) -> np.ndarray:
    """Return which strokes stand on a line with others of their kind, bool [n]: one as high as it, or two of whatever height."""
    low, high = GLYPH
    at_top = strokes.top == 0  # cut by the edge of the image, perhaps
    chosen = np.flatnonzero(
        (strokes.height >= np.where(at_top, 3, np.maximum(4, low * unit)))
        & (strokes.height <= high * unit)
        & (strokes.width <= WORD * unit)
        & (strokes.contrast >= CONTRAST)
    )
    found = np.zeros(len(strokes.top), bool)
    if len(chosen) > MOST:
        return found
    top, left, height, width = (
        values[chosen] for values in (strokes.top, strokes.left, strokes.height, strokes.width)
    )
    bottom, right = top + height, left + width

    def apart(a: np.ndarray) -> np.ndarray:
        return np.asarray(np.abs(a[:, None] - a))

    gap = np.maximum(left[:, None], left) - np.minimum(right[:, None], right)
    near = (gap >= 0) & (gap <= 1.2 * np.maximum(height[:, None], height))
    near &= np.minimum(width[:, None], width) <= WIDEST * unit
    stands = near & (apart(bottom) <= 1.5 * unit)
    alike = stands & (apart(top) <= 1.5 * unit)
    stand = alike.any(1) | (stands.sum(1) >= 2)
    # Where few of many do, as in bright speckle, they do by chance, but for three in a row to the pixel.
    exact = near & (apart(bottom) <= unit) & (apart(top) <= unit)
    middle = exact.sum(1) >= 2
    in_row = middle | (exact & middle).any(1)
    found[chosen] = stand & (in_row | (stand.sum() >= 0.2 * len(stand)))
    return found


def is_tick(strokes: Strokes, unit: float) -> np.ndarray:
    """Return which strokes are the ticks of a scale, bool [n]: four others of their size begin in their row or column."""
    short = (strokes.contrast >= CONTRAST) & (np.minimum(strokes.height, strokes.width) <= 4 * unit)
    short &= np.maximum(strokes.height, strokes.width) <= GLYPH[1] * unit
    chosen, found = np.flatnonzero(short), np.zeros(len(short), bool)
    if len(chosen) > MOST:
        return found
    top, left, height, width = (
        np.abs(values[chosen][:, None] - values[chosen]) <= 1
        for values in (strokes.top, strokes.left, strokes.height, strokes.width)
    )
    of_size = (top ^ left) & height & width
    found[chosen] = ((of_size & top).sum(1) >= 4) | ((of_size & left).sum(1) >= 4)
    return found


def in_corner(strokes: Strokes) -> np.ndarray:
    """Return which strokes lie on black in a corner of the image, bool [n]: the mark of its maker."""
    height, width = strokes.labels.shape
    reach = 9 * max(height, width) / 256
    ends = [
        (place + size <= reach) | (place >= whole - reach)
        for place, size, whole in (
            (strokes.top, strokes.height, height),
            (strokes.left, strokes.width, width),
        )
    ]
    is_drawn = (strokes.contrast >= CONTRAST) & (strokes.on_black >= 0.25)
    return np.asarray(ends[0] & ends[1] & is_drawn)


def is_beside(strokes: Strokes, centres: np.ndarray, unit: float) -> np.ndarray:
    """Return which strokes are the number of a calliper, bool [n]: of a letter's size, their middle at most 11 units away."""
    if not len(centres):
        return np.zeros(len(strokes.top), bool)
    middle = np.stack([strokes.top + strokes.height / 2, strokes.left + strokes.width / 2], 1)
    away = np.abs(middle[:, None] - centres).max(2).min(1)
    small = (strokes.height <= WIDEST * unit) & (strokes.width <= WIDEST * unit)
    small &= (strokes.height >= 4 * unit) & (strokes.width <= 1.2 * strokes.height)
    return np.asarray(small & (strokes.contrast >= CONTRAST) & (away <= 11 * unit))


def find_crosses(levels: np.ndarray, unit: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the pixels of callipers, +, bool [H, W], and their centres (row, column) [m, 2].

    Four arms are bright to their ends and brighter than both of their sides. Callipers come in pairs: beside a clear one, less
    clear ones count, one of whose arms may touch something bright.
    """
    found, hits, clear = np.zeros((3, *levels.shape), bool)
    for arm in sorted({*ARMS, *(round(arm * unit) for arm in ARMS)}):
        lowest, rises = zip(*(_arm(levels, step, arm) for step in DIRECTIONS), strict=True)
        bright, ordered = np.min(lowest, 0), np.sort(rises, 0)
        is_clear = (bright >= 150) & (ordered[0] >= 45)
        hit = is_clear | (bright >= 120) & (ordered[1] >= 40) & (ordered[0] >= 0)
        shape = np.zeros((2 * arm + 3, 2 * arm + 3), bool)
        shape[arm + 1, :] = shape[:, arm + 1] = True
        found |= ndimage.binary_dilation(hit, shape)
        hits, clear = hits | hit, clear | is_clear
    if not clear.any():
        return clear, np.empty((0, 2))  # the array is all False
    labels, n = ndimage.label(ndimage.binary_dilation(hits, EIGHT), EIGHT)
    return found, np.array(ndimage.center_of_mass(hits, labels, range(1, n + 1)))


def _arm(levels: np.ndarray, step: tuple[int, int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return how bright the arm that begins at each pixel is at its darkest, and its mean rise above its brighter side."""
    margin = length + 2
    padded = np.pad(levels, margin, mode="reflect")
    (rows, columns), (down, right) = levels.shape, step

    def at(k: int, aside: int) -> np.ndarray:
        top, left = margin + k * down - aside * right, margin + k * right + aside * down
        return padded[top : top + rows, left : left + columns]

    along = [at(k, 0) for k in range(1, length + 1)]
    sides = [np.maximum(at(k, -2), at(k, 2)) for k in range(2, length + 1)]
    return np.min(along, 0), np.mean(along[1:], 0) - np.mean(sides, 0)


def dotted_lines(levels: np.ndarray, centres: np.ndarray, unit: float) -> np.ndarray:
    """Return the dotted lines that callipers are joined by, bool [H, W]: brighter than both sides nearly all along.

    Args:
        levels: [H, W].
        centres: of the callipers, (row, column) [m, 2].
        unit: pixels.
    """
    found = np.zeros(levels.shape, bool)
    smooth = ndimage.maximum_filter(levels, 3)
    for first, second in combinations(centres, 2):
        span = second - first
        length = float(np.hypot(*span))
        if length < 12 * unit:
            continue
        places = first + np.linspace(0, 1, round(length) + 1)[:, None] * span  # [n, 2]
        aside = 4 * unit * np.array([-span[1], span[0]]) / length
        on, one, other = (
            ndimage.map_coordinates(smooth, (places + shift).T, order=1, mode="nearest")
            for shift in (0 * aside, aside, -aside)
        )
        if np.mean(on > np.maximum(one, other) + 8) >= 0.7:
            row, column = places.round().astype(int).T
            found[row, column] = True
    return np.asarray(ndimage.binary_dilation(found, ndimage.generate_binary_structure(2, 1)))


def fill(image: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Return the grey levels with the median of the pixels around in place of each drawn one, uint8 [H, W].

    The square around a pixel grows until a quarter of it is not drawn; where all is drawn, black is left.
    """
    filled, missing = image.copy(), np.argwhere(drawn)  # [m, 2]
    radius = 3
    while len(missing):
        values = np.pad(image.astype(np.float32), radius, constant_values=np.nan)
        values[np.pad(drawn, radius)] = np.nan
        steps = np.arange(2 * radius + 1)
        around = values[
            missing[:, 0, None, None] + steps[:, None], missing[:, 1, None, None] + steps
        ].reshape(len(missing), -1)  # [m, (2 radius + 1)^2]
        known = np.isfinite(around).sum(1)
        enough = (known >= around.shape[1] / 4) | (radius >= max(image.shape))
        around[known == 0] = 0  # everything is drawn
        filled[tuple(missing[enough].T)] = (
            np.nanmedian(around[enough], axis=1).round().astype(np.uint8)
        )
        missing, radius = missing[~enough], 2 * radius
    return filled
