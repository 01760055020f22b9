"""Classify whole images without points, as a user would try instead: regressions on hand-made features, and small networks.

All of them learn from the training split alone. What they reach says what points have to beat.

* ``picture``: logistic regression on what is not in the picture: height / width, the region's share, brightness at the edges.
  Where it is far above 0.5, the way in which images were taken or cut tells the label.
* ``texture``: logistic regression on grey-level co-occurrence statistics (Haralick et al. 1973), histograms of oriented
  gradients (Dalal and Triggs 2005) and grey-level quantiles; the penalty is chosen by cross-validation over patients.
* ``cnn``: a small convolutional network with average pooling.
* ``attention_cnn``: the same network with gated attention pooling (Ilse et al. 2018, arXiv 1802.04712, equation 9); the points of
  its row are the cells that it attends to most.
* ``unet``: a small U-Net (Ronneberger et al. 2015, arXiv 1505.04597) that draws the lesion and reads the label from what it has
  drawn. It learns outlines from the training images whose outline is shown to the losses, and the label from all; the epoch with
  the best Dice on the outlines of the validation split is kept. Its points are the cells of the highest probability.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import torch
from torch.nn import functional as F

from grpo_pipeline.tasks.attention.batch import AttentionData, learned_outlines, region_cells
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.evaluation.frames import FACTS, fact_columns, rule_columns
from grpo_pipeline.tasks.attention.evaluation.metrics import REQUIRED
from grpo_pipeline.tasks.attention.evaluation.point_rules import PointTask
from grpo_pipeline.tasks.attention.inference.appearance import QUANTILES, content_box
from grpo_pipeline.tasks.attention.model.baselines import lesion_coverage, lesion_share
from grpo_pipeline.tasks.attention.model.mask_agreement import overlap
from grpo_pipeline.tasks.attention.model.outline_network import (
    as_mask,
    draw_outlines,
    train_outlines,
)
from grpo_pipeline.tasks.attention.model.whole_image_network import apply_network, train_network

NAMES = ("picture", "texture", "cnn", "attention_cnn", "unet")

LEVELS, DISTANCES = 32, (1, 2, 4, 8)
"""Grey levels of a co-occurrence matrix, and the distances of its pairs in pixels of the model image."""

PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Inverse strengths of the penalty of a regression."""


def fit_baselines(
    task: PointTask, data: AttentionData, names: Sequence[str], rows: np.ndarray, *, seed: int
) -> pd.DataFrame:
    """Train each classifier on the training split and return its prediction rows for ``rows``, ``rule`` being its name.

    What a classifier does not have is NaN: a reward, a heatmap, points but for ``attention_cnn`` and ``unet``, of which the
    latter has ``dice`` and ``iou`` of the mask that it draws, too.

    Args:
        task: says how many points a set has, and the grid of cells.
        data: the data set.
        names: of NAMES.
        rows: row numbers to predict, int64 [n].
        seed: of the networks' weights and batches, and of the folds.

    Raises:
        ValueError: for an unknown name, or ``unet`` where no training outline is shown.
    """
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        raise ValueError(
            f"attention.evaluation.baselines must be among {', '.join(NAMES)}, got {unknown[0]!r}; correct it"
        )
    examples = data.examples
    train = examples.rows("train")
    facts = examples.table.iloc[rows][fact_columns(examples.table)].reset_index(drop=True)
    combined, frames = rule_columns(examples.table, task.aggregate), []
    for name in names:
        found: dict[str, np.ndarray] = {}
        maps = None
        if name in ("picture", "texture"):
            describe = describe_picture if name == "picture" else describe_texture
            probs = _regress(describe, examples, train, rows, seed=seed)
        elif name == "unet":
            outlined = learned_outlines(examples, train, task.supervised.mask_share)
            drawing = train_outlines(examples, train, outlined, seed=seed)
            probs, masks = draw_outlines(drawing, examples, rows)
            dice, union = overlap((masks > 0.5)[:, None], as_mask(examples.lesion, rows))
            found = {"dice": dice[:, 0].numpy(), "iou": union[:, 0].numpy()}
            maps = F.adaptive_avg_pool2d(masks, task.grid).flatten(1)  # [n, V]
        else:
            net = train_network(examples, train, seed=seed, attends=name == "attention_cnn")
            probs, attention = apply_network(net, examples, rows, grid=task.grid)
            maps = attention if name == "attention_cnn" else None
        if maps is not None:
            lesion, cells = (
                region_cells(as_mask(masks_of, rows), task.grid)
                for masks_of in (examples.lesion, examples.region)
            )
            most = maps.masked_fill(~cells, -torch.inf).topk(task.model.points).indices  # [n, k]
            found |= {
                "lesion_hit": lesion_share(most[:, None], lesion),
                "lesion_coverage": lesion_coverage(lesion, cells),
            }
        frames.append(facts.assign(rule=name, prob=probs, **found, **combined))
    further = [*(name for name in facts if name not in FACTS), *combined]
    drawn = ["dice", "iou"] if "unet" in names else []
    return pd.concat(frames, ignore_index=True).reindex(columns=[*REQUIRED, *further, *drawn])


def describe_picture(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Return log2(height / width), the region's share and the mean grey level along the four edges, float64 [6]."""
    box = content_box((image > 0) | region)
    stored = image[box].astype(np.float64)
    edge = max(1, min(stored.shape) // 16)
    strips = stored[:edge], stored[-edge:], stored[:, :edge], stored[:, -edge:]
    shape = [np.log2(stored.shape[0] / stored.shape[1]), region[box].mean()]
    return np.array([*shape, *(strip.mean() / 255 for strip in strips)])


def describe_texture(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Return co-occurrence statistics and grey-level quantiles of the part that the stored image fills, and oriented gradients.

    The gradients are those of 8 x 8 blocks of the square, padding included: where the image ends is in them.
    """
    from skimage.feature import graycomatrix, graycoprops, hog

    levels = (image // (256 // LEVELS)).astype(np.uint8)
    angles = np.arange(4) * np.pi / 4
    box = content_box((image > 0) | region)
    pairs = graycomatrix(  # type: ignore[no-untyped-call]
        levels[box], DISTANCES, angles, levels=LEVELS, symmetric=True, normed=True
    )
    properties = ("contrast", "dissimilarity", "homogeneity", "energy", "correlation")
    gradients = hog(
        image,
        orientations=8,
        pixels_per_cell=(image.shape[0] // 8, image.shape[1] // 8),
        cells_per_block=(1, 1),
    )
    quantiles = np.percentile(image[box], QUANTILES) / 255
    statistics = [
        graycoprops(pairs, name).ravel()  # type: ignore[no-untyped-call]
        for name in properties
    ]
    return np.concatenate([*statistics, gradients, quantiles])


def _regress(
    describe: Callable[[np.ndarray, np.ndarray], np.ndarray],
    examples: Examples,
    train: np.ndarray,
    rows: np.ndarray,
    *,
    seed: int,
) -> np.ndarray:
    """Return the probabilities of a penalised logistic regression on standardised features, float64 [n]."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = {
        row: describe(np.asarray(examples.images[row]), np.asarray(examples.region[row]))
        for row in {*train.tolist(), *rows.tolist()}
    }
    label = examples.table["label"].to_numpy(np.int64)[train]
    patients = examples.table["patient_id"].astype(str).to_numpy()[train]
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000))
    # As many folds as each class has patients, at most 5; with fewer than 2 the middle penalty is taken.
    folds = min(5, *(len(np.unique(patients[label == kind])) for kind in (0, 1)))
    inputs = np.stack([features[row] for row in train.tolist()])
    if folds < 2:
        fitted = model.set_params(logisticregression__C=PENALTIES[1]).fit(inputs, label)
    else:
        search = GridSearchCV(
            model,
            {"logisticregression__C": PENALTIES},
            scoring="neg_log_loss",
            cv=StratifiedGroupKFold(folds, shuffle=True, random_state=seed),
        )
        fitted = search.fit(inputs, label, groups=patients)
    return np.asarray(
        fitted.predict_proba(np.stack([features[row] for row in rows.tolist()]))[:, 1]
    )
