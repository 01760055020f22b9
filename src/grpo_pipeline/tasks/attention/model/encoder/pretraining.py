"""Pretrain SAM's image encoder without labels: hide cells of an image and predict their pixels (a masked autoencoder).

Source: He et al. 2021, arXiv 2111.06377: most of the image is masked, pixels of each cell are normalised by their own mean and
deviation, the loss is taken on masked cells alone. How this differs: the encoder sees the masked cells, too, with one learned
patch in their place, and one linear layer reads the pixels off its features, as SimMIM has it (Xie et al. 2021, arXiv
2111.09886): SAM's windows and relative positions need the whole grid. Cells are masked in blocks, since with small cells a
single one follows from its neighbours.
"""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.params import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.execution import at_least_float32
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData
from grpo_pipeline.tasks.attention.data.params import AugmentationParams
from grpo_pipeline.tasks.attention.model.encoder.pretrained import encoder_input, fingerprint_of
from grpo_pipeline.tasks.attention.model.model import AttentionModel, encoders_of
from grpo_pipeline.tasks.attention.model.point_sets import empty_sets
from grpo_pipeline.tasks.attention.params import MaskingParams, PretrainingTarget
from grpo_pipeline.tasks.base import BaseTask, Proposal

EPS = 1e-6  # added to the variance of a cell's pixels, as in the authors' code
HASHED_AT_ONCE = 64
SIZES = (
    "patch_size",
    "encoder_width",
    "encoder_layers",
    "encoder_heads",
    "encoder_window",
    "feature_channels",
)


def draw_masks(n: int, grid: int, masking: MaskingParams, *, generator: Generator) -> Tensor:
    """Return which cells of n images are masked, bool [n, grid * grid] on the CPU; the same number in each image."""
    side = grid // masking.block
    count = min(max(round(masking.share * side**2), 1), side**2 - 1)
    order = torch.rand(n, side**2, generator=generator).argsort(dim=1)
    is_masked = torch.zeros(n, side**2, dtype=torch.bool).scatter_(1, order[:, :count], True)
    blocks = is_masked.reshape(n, side, side)
    return blocks.repeat_interleave(masking.block, 1).repeat_interleave(masking.block, 2).flatten(1)


def cell_pixels(images: Tensor, grid: int) -> Tensor:
    """Return the pixels of each cell, row by row, [P, 1, S, S] -> [P, grid * grid, p * p] with p = S / grid."""
    n, p = len(images), images.shape[-1] // grid
    tiles = images.reshape(n, grid, p, grid, p).transpose(2, 3)  # [P, h, w, p, p]
    return tiles.reshape(n, grid * grid, p * p)


def reconstruction_loss(predicted: Tensor, images: Tensor, is_masked: Tensor) -> Tensor:
    """Return the mean squared error of the masked cells' pixels, each cell normalised by itself.

        mean over masked cells of mean over pixels of (predicted - (x - mean x) / sqrt(var x + 1e-6))^2

    Args:
        predicted: [P, V, p * p], of all cells.
        images: [P, 1, S, S].
        is_masked: bool [P, V]; other cells contribute 0 and get no gradient.
    """
    pixels = cell_pixels(images, round(predicted.shape[1] ** 0.5))
    variance, mean = torch.var_mean(pixels, dim=-1, keepdim=True)
    wanted = (pixels - mean) / (variance + EPS).sqrt()
    errors = (at_least_float32(predicted) - wanted).square().mean(-1)  # [P, V]
    return errors.masked_fill(~is_masked, 0.0).sum() / is_masked.sum().clamp(min=1)


class Autoencoder(nn.Module):
    """SAM's image encoder, the patch that stands for a masked cell, and the layer that reads a cell's pixels off its features."""

    def __init__(self, encoder: Any, *, grid: int) -> None:
        super().__init__()
        config = encoder.config
        self.encoder, self.grid, self.patch = encoder, grid, config.patch_size
        self.mask_patch = nn.Parameter(torch.zeros(config.num_channels, self.patch, self.patch))
        self.head = nn.Conv2d(config.output_channels, self.patch**2, 1)

    def forward(self, images: Tensor, is_masked: Tensor) -> Tensor:
        """Predict the pixels of every cell, images [P, c, S, S] and bool [P, V] -> [P, V, p * p]; masked ones are not seen."""
        hidden = is_masked.reshape(-1, 1, self.grid, self.grid)
        hidden = hidden.repeat_interleave(self.patch, 2).repeat_interleave(self.patch, 3)
        seen = torch.where(hidden, self.mask_patch.repeat(1, self.grid, self.grid), images)
        features = self.encoder(seen).last_hidden_state  # [P, C, h, w]
        read: Tensor = self.head(features)
        return read.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class MaskedBatch:
    """Cores of which only the images are read, and which of their cells are masked, bool [P, V]."""

    cores: AttentionBatch
    is_masked: Tensor


@dataclass(frozen=True)
class Reconstruction:
    """Predicted pixels of every cell, [P, V, p * p]."""

    predicted: Tensor


@dataclass(frozen=True)
class PretrainingTask(BaseTask):
    """The stage ``pretraining`` of the attention task: one supervised loss on rows of the training split, and no samples.

    Subclasses say what is trained and what of these rows is read. A batch has ``cores``, an encoding ``predicted``.

    Attributes:
        task: the ``AttentionTask`` that begins with the weights.
        device: where it computes.
        masking: of ``images``, which cells are masked.
        name: prefix of its catalogue names and parameters.
        target: what is learned.
        augmentation: of the images that it sees, in the place of the arms'.
    """

    task: Any = field(repr=False)
    device: torch.device
    masking: MaskingParams = field(default_factory=MaskingParams)
    name: str = "attention"
    target: PretrainingTarget = field(default_factory=PretrainingTarget)
    augmentation: AugmentationParams | None = None

    @property
    def augmented(self) -> Any:
        """The attention task whose batches are augmented as this stage says."""
        return replace(self.task, augmentation=self.augmentation)

    @property
    def components(self) -> tuple[str, ...]:
        """Those of the attention task: learning rates are shared."""
        found: tuple[str, ...] = self.task.components
        return found

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Refuse everything but a supervised loss without samples."""
        if algorithm.name != "supervised" or algorithm.proposal != "none":
            raise ValueError(
                "attention.pretraining.algorithm must have name = supervised and proposal = none, got "
                f"{algorithm.name} and {algorithm.proposal}; nothing is sampled before there are labels: remove them"
            )

    def rows(self, data: AttentionData, split: str) -> np.ndarray:
        """Return the rows of the training split, and none of any other: their images are not looked at."""
        return data.examples.rows("train") if split == "train" else np.empty(0, np.int64)

    def replicate(self, batch: Any, group_size: int) -> Any:
        """Return the batch: there are no samples."""
        return batch

    def sample(
        self,
        policy: Any,
        context: Any,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Rollouts:
        """Return samples of no point."""
        return empty_sets(len(context.predicted), group_size, device=self.device)

    def score(
        self,
        policy: Any,
        context: Any,
        rollouts: Rollouts,
        *,
        temperature: float,
    ) -> Scores:
        """Refuse, as ``check_algorithm`` has done before."""
        raise NotImplementedError("the pretraining has no samples")

    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return that no sample was scored, NaN [P, G]."""
        shape = rollouts.actions.shape[:2]
        return {"class": torch.full(shape, torch.nan, device=self.device)}, {"class": 1.0}

    def tabulate(self, data: AttentionData, batch: Any, rollouts: Rollouts) -> pd.DataFrame:
        """Return one row per core and sample of nothing."""
        cores = data.examples.table["core_id"].to_numpy()[batch.cores.rows.cpu().numpy()]
        group_size = rollouts.actions.shape[1]
        sample = np.tile(np.arange(group_size), len(cores))
        return pd.DataFrame({"core_id": cores.repeat(group_size), "sample": sample})

    def evaluate(
        self,
        policy: Any,
        data: AttentionData,
        rows: np.ndarray,
        *,
        seed: int,
        n_samples: int,
    ) -> pd.DataFrame:
        """Refuse: it predicts no label."""
        raise NotImplementedError("the pretraining predicts no label")

    def validate(
        self,
        policy: Any,
        data: AttentionData,
        rows: np.ndarray,
        *,
        seed: int,
        n_samples: int,
    ) -> dict[str, float]:
        """Return nothing: no other split is looked at."""
        return {}

    def begin_with(self, start: ModelWeights) -> Any:
        """Return the attention task that begins with these weights."""
        return replace(self.task, start=start)


@dataclass(frozen=True)
class AutoencoderTask(PretrainingTask):
    """The pretraining of the encoder on training images alone: no label, mask or other split is read."""

    def __post_init__(self) -> None:
        """Refuse blocks that do not tile the grid or are all of it, and a share of points: there are none."""
        if self.target.in_lesion != PretrainingTarget().in_lesion:
            raise ValueError(
                "attention.pretraining.target.in_lesion must be left out with of: images, got "
                f"{self.target.in_lesion:g}; only outlines are drawn from points"
            )
        grid, block = self.task.grid, self.masking.block
        if grid % block or grid == block:
            raise ValueError(
                f"attention.pretraining.masking.block must divide the {grid} cells of a side into at least 2, got {block}; use 1"
            )

    def build_policy(self, seed: int) -> Autoencoder:
        """Return an autoencoder whose encoder starts as that of the arms; the global random state stays."""
        model = self.task.model.model_copy(update={"encoder": "train"})
        encoder = replace(self.task, model=model).build_policy(seed).sam.net.vision_encoder
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return Autoencoder(encoder, grid=self.task.grid).to(self.device)

    def parameter_groups(self, policy: Autoencoder) -> dict[str, list[nn.Parameter]]:
        """Return all weights as ``encoder``: its rate of learning is that of the encoder."""
        return {"encoder": [p for p in policy.parameters() if p.requires_grad]}

    def make_batch(
        self, data: AttentionData, rows: np.ndarray, *, generator: Generator | None = None
    ) -> MaskedBatch:
        """Return images with drawn masks, augmented where the arms' are; without a generator always with the same masks."""
        cores = self.augmented.make_batch(data, rows, generator=generator)
        drawn = torch.Generator().manual_seed(0) if generator is None else generator
        is_masked = draw_masks(len(rows), self.task.grid, self.masking, generator=drawn)
        return MaskedBatch(cores, is_masked.to(self.device))

    def encode(self, policy: Autoencoder, batch: MaskedBatch) -> Reconstruction:
        """Predict the pixels of all cells from those that are not masked."""
        images, checkpoint = batch.cores.images, self.task.model.checkpoint
        if checkpoint is not None:
            channels = policy.encoder.config.num_channels
            images = encoder_input(checkpoint.normalisation, batch.cores, channels=channels)
        return Reconstruction(policy(images, batch.is_masked))

    def supervised_counts(self, batch: MaskedBatch) -> Tensor:
        """Return the number of masked cells, float64 [1]."""
        return batch.is_masked.sum().double()[None]

    def supervised_loss(
        self,
        policy: Autoencoder,
        context: Reconstruction,
        batch: MaskedBatch,
        outcomes: Any,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return the error of the masked cells."""
        loss = reconstruction_loss(context.predicted, batch.cores.images, batch.is_masked)
        return loss if shares is None else loss * shares[0].to(loss.dtype)

    def describe(self, policy: Autoencoder) -> dict[str, Any]:
        """Return what was trained and how."""
        sizes = {name: getattr(self.task.model, name) for name in SIZES}
        return {
            "task": self.name,
            "stage": "pretraining",
            "image_size": self.task.image_size,
            "model": sizes,
            "masking": self.masking.model_dump(mode="json"),
        }

    def fingerprint(self, data: AttentionData, *, draws: bool = True) -> dict[str, Any]:
        """Return what decides the weights: sizes of the encoder, masking, augmentation, and the training images alone."""
        model = self.task.model
        found: dict[str, Any] = {
            "model": {name: getattr(model, name) for name in SIZES},
            "masking": decisive(self.masking),
            "images": digest_of_images(data, self.rows(data, "train")),
        }
        if self.augmentation is not None:
            found["augmentation"] = decisive(self.augmentation)
        if model.checkpoint is not None:
            found["checkpoint"] = fingerprint_of(model.checkpoint)
        return found


def digest_of_images(data: AttentionData, rows: np.ndarray) -> str:
    """Return the SHA-256 of the regions and images of these rows, in their order; the augmentation reads the regions."""
    digest = hashlib.sha256()
    for start in range(0, len(rows), HASHED_AT_ONCE):
        chosen = rows[start : start + HASHED_AT_ONCE]
        for array in (data.examples.images, data.examples.region, data.examples.bag):
            digest.update(np.ascontiguousarray(array[chosen]).tobytes())
    return digest.hexdigest()


def begin_with_pretraining(model: AttentionModel, start: ModelWeights) -> None:
    """Load the weights of a pretraining (``model/encoder/pretraining.py``) into the model's encoders or its pixels, in place.

    Raises:
        ValueError: if they are those of other sizes.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in start.tensors.items():
        part, _, inner = name.partition(".")
        found.setdefault(part, {})[inner] = tensor
    try:
        for encoder in encoders_of(model) if "encoder" in found else ():
            encoder.load_state_dict(found["encoder"])
        if "detail" in found and model.detail is not None:
            model.detail.load_state_dict(found["detail"])
    except RuntimeError as error:
        sizes = start.config.get("model")
        raise ValueError(
            f"attention.model must have the sizes of the pretraining that it begins with, got others than {sizes}; leave the "
            "sizes alone, or pretrain with them"
        ) from error
