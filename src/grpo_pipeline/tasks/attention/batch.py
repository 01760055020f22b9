"""Data of the training loop: a batch of biopsy cores, their encoding, and the outcomes of the sampled point sets."""

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.stored_pixels import Pixels, read_pixels, to_tensor


@dataclass(frozen=True)
class AttentionData:
    """The data of a run.

    Attributes:
        examples: tables and images.
        features: of a frozen encoder, float32 [n, C, h, w], or None; memory maps in a run.
        reference_logits: of a frozen reference policy, float32 [n, V], with the log odds of its stops behind them where it has
            a stop head (``SetLogits.packed``), or None; computed once, since neither changes.
        shows_lesion: whether batches hold the lesion, for the arm whose points are drawn in it and for no other.
    """

    examples: Examples
    features: np.ndarray | None
    reference_logits: np.ndarray | None = None
    shows_lesion: bool = False


@dataclass(frozen=True)
class AttentionBatch:
    """P cores at model size. The lesion is deliberately not here, but for an arm with ``proposal: oracle``.

    Attributes:
        rows: row numbers in the data set, int64 [P].
        images: [P, 1, S, S], grey levels standardised per image inside the non-zero area.
        cells: bool [P, V], True where points may fall.
        bag: [P, 4h, 4w] in [0, 1], coverage of each heatmap pixel by the part of the bag inside the region.
        label: [P] or [P, G], 1.0 for cancer.
        involvement: [P] or [P, G] in [0, 1]; the label where no involvement is known.
        features: [P, C, h, w] of a frozen encoder, or None.
        reference_logits: [P, V (+ S)] of the reference policy where they are known, or None.
        grade_group: [P], 0 to 5, or NaN where it is not known.
        lesion_cells: bool [P, V], True inside the lesion; None unless the data show it.
        clinical: [P, F], values of the clinical columns in their own units, NaN where unknown or dropped; None for a model
            without clinical prompts.
        folds: of the training patients, int64 [P], -1 for a core of another split; None where the decoder has no folds.
        classes: number of the class, int64 [P], or which of several findings the core has, bool [P, C]; None of data with a label
            alone.
        levels: [P, 2], mean and standard deviation of the grey levels before they were standardised, as shares of white.
        outline: [P, 4h, 4w] in [0, 1], coverage of each heatmap pixel by a lesion whose outline is shown, all 0 for the other
            cores; None where none is shown.
    """

    rows: Tensor
    images: Tensor
    cells: Tensor
    bag: Tensor
    label: Tensor
    involvement: Tensor
    features: Tensor | None
    reference_logits: Tensor | None
    grade_group: Tensor
    lesion_cells: Tensor | None
    clinical: Tensor | None
    folds: Tensor | None
    classes: Tensor | None
    levels: Tensor
    outline: Tensor | None = None


@dataclass(frozen=True)
class AttentionContext:
    """One encoding per core, shared by its G samples: features [P, C, h, w], texture [P, T, h, w], images and cells.

    ``lesion_cells`` is that of the batch: only ``proposal: oracle`` reads it. ``statistics`` [P, D, h, w] are those of fields
    around the cells, for a class decoder that reads them, and ``region`` [P, R] those of the whole region; ``prior`` [P, V] are
    logits that the policy adds to its own; ``folds`` and ``clinical`` are those of the batch; ``detail`` [P, D, 4h, 4w] are
    features of the pixels, for the prompted mask, and ``detail_cells`` [P, D, h, w] of the cells, for the policy;
    ``policy_features`` [P, C, h, w] are those of the policy's own encoder, where it has one.
    """

    features: Tensor
    texture: Tensor
    images: Tensor
    cells: Tensor
    lesion_cells: Tensor | None = None
    statistics: Tensor | None = None
    prior: Tensor | None = None
    region: Tensor | None = None
    folds: Tensor | None = None
    clinical: Tensor | None = None
    detail: Tensor | None = None
    detail_cells: Tensor | None = None
    policy_features: Tensor | None = None


@dataclass(frozen=True)
class Outcomes:
    """Outputs of the decoders for the point sets: class_logits [P, G], bag_probs [P, G], mask_logits [P, G, 4h, 4w].

    ``bag_probs`` is the mean heatmap probability over the bag, the model's estimate of the involvement. ``rollouts`` are the
    point sets themselves, where ``AttentionTask.decode`` made the outcomes. ``heads`` are the logits of a decoder with folds and
    ``learners`` their weights in the loss, [P, G, F] each. ``segmentation_logits`` [P, G, 4h, 4w] are those of the prompted mask,
    the lesion at the points, where somebody reads it. With more than two classes ``class_scores`` [P, G, C] are their logits,
    ``heads`` is [P, G, F, C], and ``class_logits`` are the log-odds of the positive ones.
    """

    class_logits: Tensor
    bag_probs: Tensor
    mask_logits: Tensor
    rollouts: Rollouts | None = None
    heads: Tensor | None = None
    learners: Tensor | None = None
    segmentation_logits: Tensor | None = None
    class_scores: Tensor | None = None


def class_targets(examples: Examples, rows: np.ndarray) -> np.ndarray:
    """Return the number of the class of these rows, int64 [n], or which of several findings they have, bool [n, C]."""
    classes = examples.classes
    assert classes is not None
    values: np.ndarray = examples.table[classes.column].to_numpy(np.int64)[rows]
    if not classes.several:
        return values
    return np.stack([classes.is_of(values, number) for number in range(len(classes.names))], axis=1)


def make_batch(
    data: AttentionData,
    rows: np.ndarray,
    *,
    grid: int,
    device: torch.device,
    clinical: tuple[str, ...] = (),
    pixels: Pixels | None = None,
    folds: int = 1,
) -> AttentionBatch:
    """Return the batch of these rows on ``device``, with the values of the clinical columns that are named.

    With ``folds`` above 1 it says which of them each training patient is in. Images and masks come from ``pixels`` in the
    place of the stored ones, if given.
    """
    examples = data.examples
    values = None
    if clinical:
        # A column that the table lacks is unknown in every row: a model may be asked about less than it was trained on.
        known = examples.table.reindex(columns=list(clinical)).iloc[rows]
        values = torch.as_tensor(known.to_numpy(np.float32, copy=True), device=device)  # [P, F]
    if pixels is None:
        pixels = read_pixels(examples, rows, device=device, with_lesion=data.shows_lesion)
    bag = pixels.bag & pixels.region
    label = torch.as_tensor(examples.table["label"].to_numpy(np.float32)[rows], device=device)
    involvement = torch.as_tensor(
        examples.table["involvement"].to_numpy(np.float32)[rows], device=device
    )
    return AttentionBatch(
        rows=torch.as_tensor(rows, device=device),
        images=standardise(pixels.images),
        levels=describe_levels(pixels.images),
        cells=region_cells(pixels.region, grid),
        bag=F.adaptive_avg_pool2d(bag.float(), 4 * grid),
        label=label,
        involvement=torch.where(involvement.isnan(), label, involvement),
        features=None if data.features is None else to_tensor(data.features, rows, device).float(),
        reference_logits=None
        if data.reference_logits is None
        else to_tensor(data.reference_logits, rows, device),
        grade_group=torch.as_tensor(
            examples.table["grade_group"].to_numpy(np.float32)[rows], device=device
        ),
        lesion_cells=None if pixels.lesion is None else region_cells(pixels.lesion, grid),
        clinical=values,
        folds=None
        if folds == 1
        else torch.as_tensor(patient_folds(examples, rows, folds), device=device),
        outline=None
        if pixels.outline is None
        else F.adaptive_avg_pool2d(pixels.outline.float(), 4 * grid),
        classes=None
        if examples.classes is None
        else torch.as_tensor(class_targets(examples, rows), device=device),
    )


def shown_outlines(examples: Examples, rows: np.ndarray, share: float) -> np.ndarray:
    """Return which of these rows belong to the training patients whose outline is shown, bool [n].

    The patients stand in the order of a hash of the name, and the first ``ceil(share * patients)`` are shown: the choice
    depends on no mask and on no patient of another split.
    """
    table = examples.table
    patients = table.loc[table["split"] == "train", "patient_id"].astype(str).unique()
    chosen = chosen_patients(tuple(patients), share)
    of_rows = table.iloc[rows]
    is_chosen = of_rows["patient_id"].astype(str).isin(chosen)
    return np.asarray(is_chosen & (of_rows["split"] == "train"), dtype=bool)


@lru_cache(maxsize=8)
def chosen_patients(patients: tuple[str, ...], share: float) -> frozenset[str]:
    """Return the first ``ceil(share * n)`` of n patients in the order of a hash; kept, since every batch asks for them."""
    # Not crc32, which is linear, so that alike names stand together; the 0 keeps the patients that results were made with.
    places = sorted(patients, key=lambda name: sha256(f"0 {name}".encode()).digest())
    return frozenset(places[: math.ceil(share * len(places) - 1e-9)])


def patient_folds(examples: Examples, rows: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold of each row's patient by a hash of the name, int64 [n]; -1 outside the training split."""
    table = examples.table.iloc[rows]
    of_patient = [crc32(str(name).encode()) % folds for name in table["patient_id"]]
    return np.where(table["split"].to_numpy() == "train", of_patient, -1).astype(np.int64)


def region_cells(region: Tensor, grid: int) -> Tensor:
    """Return which cells have their centre pixel inside the region, bool [P, S, S] -> [P, grid * grid]."""
    centre = centre_pixels(grid, region.shape[-1], device=region.device)
    return region[:, centre][:, :, centre].flatten(1)


def centre_pixels(grid: int, size: int, *, device: torch.device | None = None) -> Tensor:
    """Return the row (and column) of the pixel that holds the centre of each row (and column) of cells, int64 [grid]."""
    return ((torch.arange(grid, device=device) + 0.5) * size / grid).floor().long()


def standardise(images: Tensor) -> Tensor:
    """Return uint8 images [P, S, S] as [P, 1, S, S] with mean 0 and standard deviation 1 over the non-zero pixels."""
    values, seen = images.float(), (images > 0).float()
    mean, variance = _moments(values, seen)
    return ((values - mean) * seen / (variance.sqrt() + 1.0))[:, None]


def describe_levels(images: Tensor) -> Tensor:
    """Return mean and standard deviation of the non-zero pixels of uint8 images [P, S, S], as shares of white, [P, 2]."""
    mean, variance = _moments(images.float(), (images > 0).float())
    return torch.cat([mean, variance.sqrt()], dim=2)[:, 0] / 255


def _moments(values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    count = seen.sum((1, 2), keepdim=True).clamp(min=1)
    mean = values.sum((1, 2), keepdim=True) / count
    return mean, ((values - mean).square() * seen).sum((1, 2), keepdim=True) / count


def outlined_share(data: AttentionData, rows: np.ndarray, mask_share: float | None = None) -> float:
    """Return the share of these cores whose lesion outline a loss learns from (``learned_outlines``). NaN without a core."""
    return float(learned_outlines(data.examples, rows, mask_share).mean()) if len(rows) else np.nan


def learned_outlines(
    examples: Examples, rows: np.ndarray, mask_share: float | None = None
) -> np.ndarray:
    """Return whether a loss learns the lesion outline of each core, bool [n]: it is shown (``mask_share``), or it is their bag.

    A core without a lesion outline cannot be one of them.
    """
    shown = np.zeros(len(rows), dtype=bool)
    if mask_share is not None:
        shown = shown_outlines(examples, rows, mask_share)
    learned = [
        bool(examples.lesion[row].any())
        and (is_shown or np.array_equal(examples.lesion[row], examples.bag[row]))
        for row, is_shown in zip(rows, shown, strict=True)
    ]
    return np.array(learned, dtype=bool)


def show_lesion(data: AttentionData) -> AttentionData:
    """Return the data with batches that hold the cells of the lesion.

    Raises:
        ValueError: if no core has a lesion outline: the oracle would be the uniform proposal under another name.
    """
    if not data.examples.lesion.any():
        raise ValueError(
            f"proposal: oracle must have cores with a lesion outline, got none among {len(data.examples.table)}; name the "
            "outlines in attention.data.columns.lesion_mask, or use proposal: uniform"
        )
    return replace(data, shows_lesion=True)
