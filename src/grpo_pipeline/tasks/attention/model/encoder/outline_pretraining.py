"""Pretrain the network of the pixels on shown outlines: draw a lesion from points that lie in it or anywhere."""

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData, shown_outlines
from grpo_pipeline.tasks.attention.losses.bags import has_outline, mean_over_bags
from grpo_pipeline.tasks.attention.losses.location import location_loss
from grpo_pipeline.tasks.attention.losses.outline import outline_loss
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.point_sets import empty_sets
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.model.segmentation import PixelFeatures
from grpo_pipeline.tasks.base import BaseTask, Proposal

IN_LESION = 0.75  # of the points; the others fall anywhere in the region
HASHED_AT_ONCE = 64


@dataclass(frozen=True)
class OutlineBatch:
    """Cores whose outline is shown, and points of each, [P, 1, k, 2] in [0, 1]."""

    cores: AttentionBatch
    points: Tensor


class PixelNetwork(nn.Module):
    """The network of the pixels, and a layer that reads off its cells where the lesion is; arms begin with the first."""

    def __init__(self, detail: PixelFeatures) -> None:
        super().__init__()
        self.detail = detail
        self.place = nn.Conv2d(detail.cells.out_channels, 1, 1)


@dataclass(frozen=True)
class Drawing:
    """Logits of the lesion at each pixel, [P, 1, 4h, 4w], and of the place of a point, [P, V]."""

    predicted: Tensor
    places: Tensor


@dataclass(frozen=True)
class OutlineTask(BaseTask):
    """The stage ``pretraining`` on shown outlines: lesions are drawn from points that lie in them or anywhere.

    It trains the network of the pixels alone, once per image and without SAM, a fifth of what a whole step costs. Shown outlines
    of the training split are read, and no label, other mask or other split. The points lie in the lesion or anywhere, so that
    the mask learns to answer to them before a policy chooses any. There is one supervised loss, and no samples.

    Attributes:
        task: the ``AttentionTask`` that begins with the weights.
        device: where it computes.
        name: prefix of its catalogue names and parameters.
    """

    task: Any = field(repr=False)
    device: torch.device
    name: str = "attention"

    def __post_init__(self) -> None:
        """Refuse a model that draws nothing, and outlines that are not shown."""
        if self.task.model.detail is None or self.task.supervised.mask_share is None:
            raise ValueError(
                "attention.pretraining must be null without attention.model.detail and "
                "attention.supervised_loss.mask_share, got a stage that draws shown outlines; give both, or no pretraining"
            )

    @property
    def components(self) -> tuple[str, ...]:
        """Those of the attention task: learning rates are shared."""
        found: tuple[str, ...] = self.task.components
        return found

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Refuse everything but a supervised loss without samples."""
        if algorithm.losses.policy is not None or algorithm.proposal != "none":
            raise ValueError(
                "attention.pretraining.algorithm must have no losses.policy and proposal = none, got "
                f"{algorithm.name} and {algorithm.proposal}; nothing is sampled before the arms: remove them"
            )

    def build_policy(self, seed: int) -> PixelNetwork:
        """Return the network of the pixels as that of the arms starts; the global random state stays."""
        detail = self.task.build_policy(seed).detail
        with drawn_on_the_cpu(seed):
            return PixelNetwork(detail).to(self.device)

    def parameter_groups(self, policy: PixelNetwork) -> dict[str, list[nn.Parameter]]:
        """Return all weights as ``detail``: its rate of learning is that of the pixels."""
        return {"detail": [p for p in policy.parameters() if p.requires_grad]}

    def rows(self, data: AttentionData, split: str) -> np.ndarray:
        """Return the rows of the training split whose outline is shown, and none of any other."""
        rows, supervised = data.examples.rows(split), self.task.supervised
        shown = shown_outlines(data.examples, rows, supervised.mask_share)
        return np.asarray(rows[shown])

    def make_batch(
        self, data: AttentionData, rows: np.ndarray, *, generator: Generator | None = None
    ) -> OutlineBatch:
        """Return images with drawn points, augmented where the arms' are; without a generator always the same points."""
        cores, grid = self.task.make_batch(data, rows, generator=generator), self.task.grid
        drawn = torch.Generator().manual_seed(0) if generator is None else generator
        inside = adaptive_avg_pool2d(cores.outline, grid).flatten(1)  # [P, V]
        anywhere = cores.cells.float() / cores.cells.sum(1, keepdim=True).clamp(min=1)
        known = inside.sum(1, keepdim=True)
        inside = torch.where(known > 0, inside / known.clamp(min=1e-6), anywhere)
        odds = IN_LESION * inside + (1 - IN_LESION) * anywhere
        k = self.task.model.points
        chosen = torch.multinomial(odds.cpu(), k, replacement=True, generator=drawn)
        points = cell_centres(chosen.to(self.device), grid)  # [P, k, 2]
        return OutlineBatch(cores, points[:, None])

    def encode(self, policy: PixelNetwork, batch: OutlineBatch) -> Drawing:
        """Draw the lesion of each image from its points, and say where it is."""
        pixels, cells = policy.detail(batch.cores.images)
        with exact_region(pixels):
            drawn = policy.detail.prompted(at_least_float32(pixels), batch.points, None)
            places = policy.place(at_least_float32(cells)).flatten(1)
        return Drawing(drawn[:, :, -1], places)

    def supervised_counts(self, batch: OutlineBatch) -> Tensor:
        """Return the number of cores with an outline, float64 [1]."""
        return has_outline(batch.cores).sum().double()[None]

    def supervised_loss(
        self,
        policy: PixelNetwork,
        context: Drawing,
        batch: OutlineBatch,
        outcomes: Any,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of the drawn mask, and that of the place of a point, over the cores with an outline."""
        cores, is_member = batch.cores, has_outline(batch.cores)
        assert cores.outline is not None  # __post_init__ asks for a share that is shown
        drawn = mean_over_bags(outline_loss(context.predicted, cores.outline), is_member)
        places = location_loss(context.places, cores, self.task.grid)[:, None]
        loss = drawn + mean_over_bags(places, is_member)
        return loss if shares is None else loss * shares[0].to(loss.dtype)

    def describe(self, policy: PixelNetwork) -> dict[str, Any]:
        """Return what was trained and how."""
        sizes = self.task.model.model_dump(include={"patch_size", "detail"})
        return {
            "task": self.name,
            "stage": "pretraining",
            "image_size": self.task.image_size,
            "model": sizes,
        }

    def fingerprint(self, data: AttentionData, *, draws: bool = True) -> dict[str, Any]:
        """Return what decides the weights: the model, which outlines are shown, and the images and outlines of these rows."""
        rows, supervised = self.rows(data, "train"), self.task.supervised
        found: dict[str, Any] = {
            "model": self.task.model.decisive(),
            "target": {"of": "outlines", "in_lesion": IN_LESION},
            "mask_share": supervised.mask_share,
            "images": digest_of_images(data, rows),
            "outlines": hashlib.sha256(
                np.packbits(np.ascontiguousarray(data.examples.lesion[rows])).tobytes()
            ).hexdigest(),
        }
        if self.task.augmentation is not None:
            found["augmentation"] = decisive(self.task.augmentation)
        return found

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


def digest_of_images(data: AttentionData, rows: np.ndarray) -> str:
    """Return the SHA-256 of the regions and images of these rows, in their order; the augmentation reads the regions."""
    digest = hashlib.sha256()
    for start in range(0, len(rows), HASHED_AT_ONCE):
        chosen = rows[start : start + HASHED_AT_ONCE]
        for array in (data.examples.images, data.examples.region, data.examples.bag):
            digest.update(np.ascontiguousarray(array[chosen]).tobytes())
    return digest.hexdigest()


def begin_with_pretraining(model: AttentionModel, start: ModelWeights) -> None:
    """Load the network of the pixels that a pretraining ended with into the model, in place.

    Raises:
        ValueError: if it has other sizes.
    """
    prefix = "detail."
    found = {
        name.removeprefix(prefix): tensor
        for name, tensor in start.tensors.items()
        if name.startswith(prefix)
    }
    if model.detail is None:  # an arm without this network
        return
    try:
        model.detail.load_state_dict(found)
    except RuntimeError as error:
        sizes = start.config.get("model")
        raise ValueError(
            f"attention.model must have the sizes of the pretraining that it begins with, got others than {sizes}; leave the "
            "sizes alone, or pretrain with them"
        ) from error
