"""Classify whole images without points, as a user would try instead: regressions on hand-made features, and small networks.

All of them learn the label from the training split alone. What they reach says what points have to beat.

* ``picture``: logistic regression on what is not in the picture: height / width, the region's share, brightness at the edges.
  Where it is far above 0.5, the way in which images were taken or cut tells the label.
* ``texture``: logistic regression on grey-level co-occurrence statistics (Haralick et al. 1973), histograms of oriented
  gradients (Dalal and Triggs 2005) and grey-level quantiles; the penalty is chosen by cross-validation over patients.
* ``cnn``: a small convolutional network with average pooling.
* ``attention_cnn``: the same network with gated attention pooling (Ilse et al. 2018, arXiv 1802.04712, equation 9); the points of
  its row are the cells that it attends to most.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.batch import AttentionData, region_cells, standardise
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.evaluation import PointTask
from grpo_pipeline.tasks.attention.inference.appearance import QUANTILES, content_box
from grpo_pipeline.tasks.attention.metrics import FACTS, REQUIRED, fact_columns, rule_columns
from grpo_pipeline.tasks.attention.model.baselines import lesion_coverage, lesion_share

NAMES = ("picture", "texture", "cnn", "attention_cnn")
LEVELS, DISTANCES = 32, (1, 2, 4, 8)
"""Grey levels of a co-occurrence matrix, and the distances of its pairs in pixels of the model image."""
PENALTIES = (0.001, 0.01, 0.1, 1.0)
"""Inverse strengths of the penalty of a regression."""
EPOCHS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 30, 16, 1e-3, 1e-2
"""Of the networks."""


def fit_baselines(
    task: PointTask, data: AttentionData, names: Sequence[str], rows: np.ndarray, *, seed: int
) -> pd.DataFrame:
    """Train each classifier on the training split and return its prediction rows for ``rows``, ``rule`` being its name.

    What a classifier does not have is NaN: a reward, a heatmap, points but for ``attention_cnn``.

    Args:
        task: says how many points a set has, and the grid of cells.
        data: the data set.
        names: of NAMES.
        rows: row numbers to predict, int64 [n].
        seed: of the networks' weights and batches, and of the folds.

    Raises:
        ValueError: for an unknown name.
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
        points: dict[str, np.ndarray] = {}
        if name in ("picture", "texture"):
            describe = describe_picture if name == "picture" else describe_texture
            probs = _regress(describe, examples, train, rows, seed=seed)
        else:
            net = train_network(examples, train, seed=seed, attends=name == "attention_cnn")
            probs, maps = apply_network(net, examples, rows, grid=task.grid)
            if name == "attention_cnn":
                lesion, cells = (
                    region_cells(torch.from_numpy(np.array(masks[rows])), task.grid)
                    for masks in (examples.lesion, examples.region)
                )
                allowed = maps.masked_fill(~cells, -torch.inf)
                most = allowed.topk(task.model.points).indices  # [n, k]
                points = {
                    "lesion_hit": lesion_share(most[:, None], lesion),
                    "lesion_coverage": lesion_coverage(lesion, cells),
                }
        frames.append(facts.assign(rule=name, prob=probs, **points, **combined))
    further = [*(name for name in facts if name not in FACTS), *combined]
    return pd.concat(frames, ignore_index=True).reindex(columns=[*REQUIRED, *further])


def describe_picture(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Return log2(height / width), the region's share and the mean grey level along the four edges, float64 [6]."""
    box = content_box((image > 0) | region)
    stored = image[box].astype(np.float64)
    edge = max(1, min(stored.shape) // 16)
    strips = stored[:edge], stored[-edge:], stored[:, :edge], stored[:, -edge:]
    shape = [np.log2(stored.shape[0] / stored.shape[1]), region[box].mean()]
    return np.array([*shape, *(strip.mean() / 255 for strip in strips)])


def describe_texture(image: np.ndarray, region: np.ndarray) -> np.ndarray:
    """Return co-occurrence statistics, oriented gradients and grey-level quantiles of the part that the stored image fills."""
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


class WholeImageNetwork(nn.Module):
    """Five convolutions, of which a cell of the map sees 31 pixels, then one logit.

    It is read from the mean of the map, or from its mean weighted by gated attention.

    Args:
        attends: whether cells are weighted.
        width: channels of the first layer.
    """

    def __init__(self, *, attends: bool, width: int = 16) -> None:
        super().__init__()
        sizes = (1, width, 2 * width, 4 * width, 4 * width)
        self.body = nn.Sequential(
            *(
                layer
                for inputs, outputs in pairwise(sizes)
                for layer in (
                    nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                    nn.GroupNorm(8, outputs),
                    nn.ReLU(),
                )
            ),
            nn.Conv2d(sizes[-1], sizes[-1], 1),
            nn.ReLU(),
        )
        self.gate = nn.Conv2d(sizes[-1], 2 * width, 1) if attends else None
        self.content = nn.Conv2d(sizes[-1], 2 * width, 1) if attends else None
        self.attention = nn.Conv2d(2 * width, 1, 1) if attends else None
        self.label = nn.Sequential(nn.Dropout(0.3), nn.Linear(sizes[-1], 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [P] and the attention of the map's cells [P, h, w], log-probabilities: images [P, 1, S, S]."""
        features = self.body(images)  # [P, C, h, w]
        n, _, height, width = features.shape
        scores = features.new_zeros(n, height * width)
        if self.attention is not None and self.gate is not None and self.content is not None:
            hidden = self.content(features).tanh() * self.gate(features).sigmoid()
            scores = self.attention(hidden).flatten(1)
        attention = scores.log_softmax(1)  # [P, h * w]
        pooled = (features.flatten(2) * attention.exp()[:, None]).sum(2)  # [P, C]
        return self.label(pooled).squeeze(1), attention.reshape(n, height, width)


def train_network(
    examples: Examples, train: np.ndarray, *, seed: int, attends: bool, epochs: int = EPOCHS
) -> WholeImageNetwork:
    """Train on the labels with mirrored images, AdamW and a cosine schedule; leaves the global random state as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = WholeImageNetwork(attends=attends)
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        batches = -(-len(train) // BATCH_SIZE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
        order = numpy_generator(seed, Stream.BASELINES)
        label = torch.from_numpy(examples.table["label"].to_numpy(np.float32))
        for _ in range(epochs):
            shuffled = order.permutation(train)
            for start in range(0, len(train), BATCH_SIZE):
                rows = shuffled[start : start + BATCH_SIZE]
                images = standardise(torch.from_numpy(np.array(examples.images[rows])))
                mirrored = torch.from_numpy(order.random(len(rows)) < 0.5)
                images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
                loss = F.binary_cross_entropy_with_logits(
                    net(images)[0], label[torch.from_numpy(rows)]
                )
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
    return net.eval()


@torch.no_grad()
def apply_network(
    net: WholeImageNetwork, examples: Examples, rows: np.ndarray, *, grid: int
) -> tuple[np.ndarray, Tensor]:
    """Return probabilities, float64 [n], and the attention on a grid x grid map, [n, V]."""
    probs, maps = [], []
    for start in range(0, len(rows), 64):
        images = standardise(torch.from_numpy(np.array(examples.images[rows[start : start + 64]])))
        logits, attention = net(images)
        probs.append(logits.sigmoid().double().numpy())
        spread = F.interpolate(attention[:, None], (grid, grid), mode="bilinear")
        maps.append(spread[:, 0].flatten(1))
    return np.concatenate(probs), torch.cat(maps)
