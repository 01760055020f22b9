"""Describe how an image looks in numbers that do not come from its labels: brightness, grain, layout, size.

They are read from the square image that the model sees, inside the rectangle that the stored image fills. The model standardises
every image, so that a change of brightness alone does not reach it; a person would still want to know.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.familiarity import Familiarity, Statistic, fit_familiarity

BATCH_SIZE, MOST = 64, 2000
"""Images at a time, and of each split at most: more do not move the distances, and would take longer."""
QUANTILES = (5, 25, 50, 75, 95)
OCTAVES = 4
LAGS = ((0, 1), (1, 0), (0, 3), (3, 0))
"""(down, right) in pixels."""
CELLS = 4
"""Side of the coarse grid of the layout."""
FEATURES, TOGETHER = "encoder features", "looks taken together"
LOOKS: dict[str, list[Statistic]] = {
    "grey levels": [Statistic(f"{q}% quantile", 2.0) for q in QUANTILES],
    "texture": [
        *(Statistic(f"log2 contrast at {2**octave} pixels", 0.05) for octave in range(OCTAVES)),
        *(
            Statistic(f"skewness of the contrast at {2**octave} pixels", 0.1)
            for octave in range(OCTAVES)
        ),
        *(
            Statistic(f"correlation {down + right} pixels {'down' if down else 'right'}", 0.01)
            for down, right in LAGS
        ),
        Statistic("skewness of the grey levels", 0.1),
    ],
    "layout": [Statistic("", 0.05)] * CELLS**2,
}
GROUPS = {
    **LOOKS,
    # An image whose levels are ordinary and whose grain is ordinary may still have the grain of other levels.
    TOGETHER: [Statistic("", statistic.floor) for group in LOOKS.values() for statistic in group],
    "size and region": [
        Statistic("log2 height / width", 0.05),
        Statistic("region's share of the image", 0.01),
    ],
}


def describe_inputs(task: Task, policy: AttentionModel, data: AttentionData) -> Familiarity:
    """Return how far images are from the training images, with a limit fitted to the validation images; no label is read."""
    rows = {split: task.rows(data, split) for split in ("train", "val")}
    for split, found in rows.items():
        if len(found) > MOST:
            # Drawn always alike, and in their order.
            drawn = numpy_generator(0, Stream.INPUTS).choice(found, MOST, replace=False)
            rows[split] = np.sort(drawn)
    vectors = {split: describe_rows(task, policy, data, rows[split]) for split in rows}
    patients = data.examples.table["patient_id"].astype(str).to_numpy()
    width = vectors["train"][FEATURES].shape[1]
    statistics = GROUPS | {FEATURES: [Statistic("", 1e-3)] * width}
    clusters = patients[rows["train"]], patients[rows["val"]]
    return fit_familiarity(vectors["train"], vectors["val"], statistics, clusters=clusters)


@torch.no_grad()
def describe_rows(
    task: Task, policy: AttentionModel, data: AttentionData, rows: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the statistics of these images by group, float64 [n, p]."""
    seen, features = [], []
    for start in range(0, len(rows), BATCH_SIZE):
        some = rows[start : start + BATCH_SIZE]
        seen += [looked_at(data.examples, int(row)) for row in some]
        features.append(pooled_features(task.encode(policy, task.make_batch(data, some)).features))
    groups = {
        name: np.array([one[name] for one in seen]).reshape(len(rows), len(GROUPS[name]))
        for name in GROUPS
    }
    return groups | {FEATURES: np.concatenate(features) if features else np.empty((0, 0))}


# The images that were looked at last, and what was seen by row: models of several arms are exported in one run.
_of: tuple[Any, Any] = (None, None)
_looks: dict[int, dict[str, np.ndarray]] = {}


def looked_at(examples: Examples, row: int) -> dict[str, np.ndarray]:
    """Look at an image once for all models that are exported: what is seen does not depend on weights."""
    global _of
    if _of[0] is not examples.images or _of[1] is not examples.region:
        _of = examples.images, examples.region
        _looks.clear()
    if row not in _looks:
        _looks[row] = look(examples, row)
    return _looks[row]


def pooled_features(features: Tensor) -> np.ndarray:
    """Return the mean of the encoder's features over the cells, [P, C, h, w] -> float64 [P, C]."""
    return features.double().mean(dim=(2, 3)).cpu().numpy()


def look(examples: Examples, row: int, *, knows_region: bool = True) -> dict[str, np.ndarray]:
    """Return the statistics of one image by group, without the encoder's features.

    Where nobody has drawn a region (``knows_region``) its share of the image is not known, NaN: that all of the image is allowed
    says nothing about the image.
    """
    stored, region = examples.images[row], np.asarray(examples.region[row])
    box = content_box((stored > 0) | region)
    image = stored[box].astype(np.float64)
    looks = {
        "grey levels": np.percentile(image, QUANTILES),
        "texture": texture(image),
        "layout": layout(image),
    }
    share = region[box].mean() if knows_region else np.nan
    size = np.array([np.log2(image.shape[0] / image.shape[1]), share])
    return {**looks, TOGETHER: np.concatenate(list(looks.values())), "size and region": size}


def content_box(seen: np.ndarray) -> tuple[slice, slice]:
    """Return the smallest rectangle that holds all True pixels, the whole image where there is none."""
    if not seen.any():
        return slice(0, seen.shape[0]), slice(0, seen.shape[1])
    rows, columns = np.flatnonzero(seen.any(axis=1)), np.flatnonzero(seen.any(axis=0))
    return slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1)


def texture(image: np.ndarray) -> np.ndarray:
    """Return contrast and skewness of each octave, correlations of neighbours, and the skewness, float64 [13].

    An octave is what a mean over 2 x 2 pixels takes away (Haar's detail), then the same of the means. + 0.5 grey levels keeps
    the logarithm finite in a constant image.
    """
    contrasts, skewnesses, level = [], [], image
    for _ in range(OCTAVES):
        height, width = (side // 2 for side in level.shape)
        level = level[: 2 * height, : 2 * width]
        means = level.reshape(height, 2, width, 2).mean(axis=(1, 3))
        detail = level - means.repeat(2, axis=0).repeat(2, axis=1)
        contrasts.append(np.log2((detail.std() if detail.size else 0.0) + 0.5))
        skewnesses.append(skewness(detail))
        level = means
    return np.array(
        [*contrasts, *skewnesses, *(correlation(image, *lag) for lag in LAGS), skewness(image)]
    )


def skewness(values: np.ndarray) -> float:
    """Return the third standardised moment; + 1 in the denominator makes it 0 for a constant."""
    if not values.size:
        return 0.0
    centred = values - values.mean()
    squares = centred * centred
    return float((squares * centred).mean() / (squares.mean() ** 1.5 + 1))


def correlation(image: np.ndarray, down: int, right: int) -> float:
    """Return the correlation of pixels with those at a distance; 1 for a constant image, or one that is too small."""
    height, width = image.shape
    first, second = image[: height - down, : width - right], image[down:, right:]
    if height <= down or width <= right:
        return 1.0
    spread = first.std() * second.std()
    return (
        float(((first - first.mean()) * (second - second.mean())).mean() / spread)
        if spread > 1e-6
        else 1.0
    )


def layout(image: np.ndarray) -> np.ndarray:
    """Return the means of 4 x 4 parts of the image, standardised by mean and spread of the image, float64 [16]."""
    coarse = Image.fromarray(image.astype(np.float32)).resize((CELLS, CELLS), Image.Resampling.BOX)
    return np.asarray((np.asarray(coarse, np.float64) - image.mean()) / (image.std() + 1)).ravel()
