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
from itertools import pairwise

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.tasks.attention.batch import (
    AttentionData,
    learned_outlines,
    region_cells,
    standardise,
)
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.evaluation.frames import FACTS, fact_columns, rule_columns
from grpo_pipeline.tasks.attention.evaluation.metrics import REQUIRED
from grpo_pipeline.tasks.attention.evaluation.point_rules import PointTask
from grpo_pipeline.tasks.attention.inference.appearance import QUANTILES, content_box
from grpo_pipeline.tasks.attention.losses import outline_loss
from grpo_pipeline.tasks.attention.model.baselines import lesion_coverage, lesion_share
from grpo_pipeline.tasks.attention.model.segmentation import overlap

NAMES = ("picture", "texture", "cnn", "attention_cnn", "unet")
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
            outlined = learned_outlines(examples, train, task.supervised)
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


# A network that learns outlines, and the label from what it has drawn.


class OutlineNetwork(nn.Module):
    """Draw the lesion by a U-Net on half the pixels, and read the label from its deepest features.

    How this differs from the source: three scales, GroupNorm, and sums in the place of concatenations. The label's logit reads
    the mean of the features over the image and over what is drawn.

    Args:
        width: channels of the first scale; the next have two and four times as many.
    """

    def __init__(self, *, width: int = 16) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.down = nn.ModuleList(
            nn.Sequential(_convolution(before, after), _convolution(after, after))
            for before, after in zip((1, *widths), widths, strict=False)
        )
        self.across = nn.ModuleList(nn.Conv2d(below, above, 1) for above, below in pairwise(widths))
        self.up = nn.ModuleList(_convolution(above, above) for above in widths[:-1])
        self.drawn = nn.Conv2d(width, 1, 1)
        self.label = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * widths[-1], 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the label [P] and of each pixel [P, S, S]: images [P, 1, S, S]."""
        x, scales = F.avg_pool2d(images, 2), []
        for number, block in enumerate(self.down):
            x = block(x if number == 0 else F.max_pool2d(x, 2, ceil_mode=True))
            scales.append(x)
        deepest = x  # [P, 4 D, S / 8, S / 8]
        for number in reversed(range(len(self.up))):
            above = scales[number]
            x = F.interpolate(self.across[number](x), size=above.shape[-2:], mode="bilinear")
            x = self.up[number](x + above)
        pixels = F.interpolate(self.drawn(x), size=images.shape[-2:], mode="bilinear")
        inside = F.interpolate(pixels.detach().sigmoid(), size=deepest.shape[-2:], mode="area")
        weight = inside / inside.sum((2, 3), keepdim=True).clamp(min=1e-6)
        pooled = torch.cat([deepest.mean((2, 3)), (deepest * weight).sum((2, 3))], 1)
        return self.label(pooled).squeeze(1), pixels[:, 0]


def _convolution(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()
    )


def train_outlines(
    examples: Examples,
    train: np.ndarray,
    outlined: np.ndarray,
    *,
    seed: int,
    epochs: int = EPOCHS,
) -> OutlineNetwork:
    """Train on the labels of all images and the outlines of those that are ``outlined``, bool [n].

    The loss is the label's cross-entropy, and that of the pixels plus 1 - Dice. Batches, mirroring and optimiser are those of the
    other networks. Without an outline in the validation split the last epoch is kept.

    Raises:
        ValueError: if no outline is shown.
    """
    if not outlined.any():
        raise ValueError(
            "attention.evaluation.baselines must not hold 'unet' where no lesion outline is shown, got none among "
            f"{len(train)} training cores; drop it, or show outlines as conf/busi_outlined does"
        )
    is_outlined = np.zeros(len(examples.table), bool)
    is_outlined[train[outlined]] = True
    val = examples.rows("val")
    judged = np.array([row for row in val if examples.lesion[row].any()], dtype=np.int64)
    label = torch.from_numpy(examples.table["label"].to_numpy(np.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = OutlineNetwork()
        optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
        batches = -(-len(train) // BATCH_SIZE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
        order = numpy_generator(seed, Stream.BASELINES)
        best, kept = -1.0, net.state_dict()
        for _ in range(epochs):
            shuffled = order.permutation(train)
            for start in range(0, len(train), BATCH_SIZE):
                rows = shuffled[start : start + BATCH_SIZE]
                images = standardise(torch.from_numpy(np.array(examples.images[rows])))
                masks = torch.from_numpy(np.array(examples.lesion[rows]))
                mirrored = torch.from_numpy(order.random(len(rows)) < 0.5)[:, None, None]
                images = torch.where(mirrored[:, None], images.flip(-1), images)
                masks = torch.where(mirrored, masks.flip(-1), masks)
                logits, pixels = net(images)
                known = torch.from_numpy(is_outlined[rows])
                loss = F.binary_cross_entropy_with_logits(logits, label[torch.from_numpy(rows)])
                if known.any():
                    drawn = outline_loss(pixels[known][:, None], masks[known].float())
                    loss = loss + drawn.mean()
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
            if len(judged):
                drawn = draw_outlines(net.eval(), examples, judged)[1] > 0.5
                outlines = as_mask(examples.lesion, judged)
                dice = float(overlap(drawn[:, None], outlines)[0].mean())
                if dice > best:
                    best = dice
                    kept = {name: value.clone() for name, value in net.state_dict().items()}
                net.train()
    if len(judged):
        net.load_state_dict(kept)
    return net.eval()


@torch.no_grad()
def draw_outlines(
    net: OutlineNetwork, examples: Examples, rows: np.ndarray
) -> tuple[np.ndarray, Tensor]:
    """Return probabilities of the label, float64 [n], and of each pixel, [n, S, S]; 0 outside the region."""
    probs, drawn = [], []
    for start in range(0, len(rows), 64):
        some = rows[start : start + 64]
        logits, pixels = net(standardise(torch.from_numpy(np.array(examples.images[some]))))
        probs.append(logits.sigmoid().double().numpy())
        drawn.append(pixels.sigmoid() * torch.from_numpy(np.array(examples.region[some])))
    return np.concatenate(probs), torch.cat(drawn)


def as_mask(masks: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return these rows of stored masks in memory of their own, bool [n, S, S]."""
    return torch.from_numpy(np.array(masks[rows]))
