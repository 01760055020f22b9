"""Apply a trained model to one biopsy core: scores, points and heatmap in the pixels of the image as it was read.

The points of a core follow from its pixels, its region and the seed: neither the other cores nor the order of the manifest nor
the way in which the image arrives changes them.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from pydantic import ValidationError

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext, AttentionData
from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.example_building import read_core
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.grey import to_grey8
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.attention.data.square_frame import Frame
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN, SPACING_COLUMN
from grpo_pipeline.tasks.attention.inference.appearance import FEATURES, look, pooled_features
from grpo_pipeline.tasks.attention.inference.calibration import Calibration
from grpo_pipeline.tasks.attention.inference.manifest import CoreRules
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.migrate_model import migrate_model
from grpo_pipeline.tasks.attention.model.baselines import point_coordinates
from grpo_pipeline.tasks.attention.model.class_scores import class_probs
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tasks.familiarity import Familiarity, Judgement

LABELS = ("label", "involvement", "grade_group")
REMEDY = "train again: .venv/bin/kedro run --pipelines attention_data,attention_train"


@dataclass(frozen=True)
class CorePrediction:
    """Prediction of the model for one biopsy core.

    Attributes:
        core_id: its name.
        patient_id: "" where unknown.
        probs: P(cancer) of each point set, float64 [E]; their mean is the prediction.
        calibrated: the prediction after calibration; NaN without one.
        involvement: mean probability of the heatmap in the bag; NaN without a bag.
        points: (x, y) of each set in pixels of ``image``, float64 [E, k, 2]; frame of ``grey.py``. NaN where a policy that may
            stop placed fewer.
        heatmap: probability per pixel of ``image``, the mean over the sets, float32 [H, W]; None where it is withheld.
        image: grey levels as they were read, uint8 [H, W].
        judgement: how far the image is from the training images; None of a model that does not know them.
        spacing_mm: row and column spacing, None where unknown.
        frame: name of the picture, "" of a core with one.
        classes: ``prob_<class>``, the mean over the sets, and with grades ``expected_class``; empty of a model of a label. They
            are not calibrated. Of findings each is a probability of its own.
    """

    core_id: str
    patient_id: str
    probs: np.ndarray
    calibrated: float
    involvement: float
    points: np.ndarray
    heatmap: np.ndarray | None
    image: np.ndarray
    judgement: Judgement | None
    spacing_mm: tuple[float, float] | None
    frame: str = ""
    classes: Mapping[str, float] = field(default_factory=dict)

    @property
    def prob(self) -> float:
        """P(cancer): the mean over the point sets, so that it hardly depends on which were drawn."""
        return float(self.probs.mean())

    def withheld(self) -> "CorePrediction":
        """Return the same without any probability: the points and the judgement stay."""
        return replace(
            self,
            probs=np.full_like(self.probs, np.nan),
            calibrated=float("nan"),
            involvement=float("nan"),
            heatmap=None,
            classes=dict.fromkeys(self.classes, float("nan")),
        )


@dataclass(frozen=True)
class Predictor:
    """A trained model with all that it needs to be used alone."""

    task: AttentionTask
    policy: AttentionModel
    preprocessing: ModelPreprocessing
    calibration: Calibration
    familiarity: Familiarity | None = None

    @property
    def rules(self) -> CoreRules:
        """Return the requirements of the model on a biopsy core's files."""
        return CoreRules(self.preprocessing, points=self.task.model.points, grid=self.task.grid)

    @property
    def can_doubt(self) -> bool:
        """Whether the model knows which images are unlike those that it was trained on."""
        return self.familiarity is not None and self.familiarity.told.limit is not None

    def check_abstain(self, abstain: bool, *, name: str) -> None:
        """Refuse to abstain with a model that cannot doubt; ``name`` is that of the parameter."""
        if abstain and not self.can_doubt:
            raise ValueError(
                f"{name} must be false for a model that does not know what its training images looked like, got true; {REMEDY}"
            )

    @torch.no_grad()
    def predict(
        self,
        raw: ImageFolder,
        row: Mapping[str, Any],
        *,
        seed: int,
        n_samples: int,
        abstain: bool = False,
    ) -> CorePrediction:
        """Score one core.

        Args:
            raw: the data root.
            row: of the table of ``check_predict_manifest``.
            seed: of the points.
            n_samples: number of point sets E; more of them leave the points of the first one as they are.
            abstain: whether an image unlike the training images gets no probability.

        Raises:
            UnreadableFileError: if a file is not any more what it was when it was checked.
        """
        path = str(row["image"])
        grey = to_grey8(raw.read_image(path), name=path, intensity=self.preprocessing.intensity)
        examples = self._examples(raw, {**row, "lesion_mask": ""})
        batch = self.task.make_batch(AttentionData(examples, None), np.arange(1))
        context = self.task.encode(self.policy, batch)
        # A number made from the image and the region at model size.
        digest = hashlib.sha256(examples.images.tobytes() + examples.region.tobytes()).digest()
        content = int.from_bytes(digest[:8], "big")
        rollouts = self._sample(context, content=content, seed=seed, n_samples=n_samples)
        outcomes = self.task.decode(self.policy, context, rollouts, batch)
        logits = outcomes.class_logits[0].double().cpu()
        frame = Frame(grey.shape[0], grey.shape[1], self.preprocessing.image_size)
        # Row and column spacing of "0.3 0.2", None for "".
        text = str(row[SPACING_COLUMN])
        values = [float(part) for part in text.split()]
        judgement = None
        if self.familiarity is not None:
            looks = look(examples, 0, knows_region=bool(row["region_mask"]))
            vectors = {name: value[None] for name, value in looks.items()}
            vectors[FEATURES] = pooled_features(context.features)
            judgement = self.familiarity.judge(vectors)
        prediction = CorePrediction(
            core_id=str(row["core_id"]),
            patient_id=str(row["patient_id"]),
            probs=logits.sigmoid().numpy(),
            calibrated=self.calibration.of_sets(logits.numpy()),
            involvement=float(outcomes.bag_probs[0].mean())
            if has_bag(row, batch)
            else float("nan"),
            points=frame.to_image(point_coordinates(rollouts, self.task.grid)[0].cpu().numpy()),
            heatmap=frame.map_to_image(outcomes.mask_logits[0].sigmoid().mean(0).cpu().numpy()),
            image=grey,
            judgement=judgement,
            spacing_mm=(values[0], values[1]) if values else None,
            frame=str(row.get(FRAME_COLUMN, "")),
            classes={}
            if self.task.classes is None or outcomes.class_scores is None
            else {
                name: float(values.mean())
                for name, values in class_probs(outcomes.class_scores[0], self.task.classes).items()
            },
        )
        doubts = judgement is not None and judgement.is_outside
        return prediction.withheld() if abstain and doubts else prediction

    def _examples(self, raw: ImageFolder, row: dict[str, Any]) -> Examples:
        image, region, bag, lesion = (
            array[None] for array in read_core(raw, row, self.preprocessing)
        )
        clinical = {name: [float(row[name])] for name in self.preprocessing.clinical}
        unknown = {name: [np.nan] for name in LABELS}
        # In no split: a decoder with folds answers by the mean of all of them.
        names = {"core_id": [row["core_id"]], "patient_id": [row["patient_id"]], "split": [""]}
        table = pd.DataFrame({**names, **unknown, **clinical})
        return Examples(table, image, region, bag, lesion, digest="")

    def _sample(
        self, context: AttentionContext, *, content: int, seed: int, n_samples: int
    ) -> Rollouts:
        """Draw the first set by itself, so that its points do not depend on how many others are drawn."""
        drawn = [
            self._draw(context, count, number, content, seed)
            for number, count in enumerate((1, n_samples - 1))
            if count
        ]
        fields = ((part.actions, part.logprobs, part.is_valid) for part in drawn)
        return Rollouts(*(torch.cat(parts, dim=1) for parts in zip(*fields, strict=True)))

    def _draw(
        self, context: AttentionContext, count: int, number: int, content: int, seed: int
    ) -> Rollouts:
        generator = step_generator(
            seed, content, number, stream=Stream.PREDICTION, device=self.task.device
        )
        return self.task.sample(
            self.policy, context, count, temperature=1.0, proposal="policy", generator=generator
        )


def build_predictor(weights: ModelWeights, *, name: str) -> Predictor:
    """Build a model from its weights and description alone.

    Args:
        weights: of an attention model.
        name: of the arm or folder, for messages.

    Raises:
        ValueError: if it is no attention model, or says nothing of its preprocessing and calibration.
    """
    config = dict(weights.config)
    if config.get("task") != "attention":
        raise ValueError(
            f"model {name} must be one of the attention task, got {config.get('task')!r}; choose another one"
        )
    preprocessing, calibration = (config.get(key) for key in ("preprocessing", "calibration"))
    if preprocessing is None or calibration is None:
        raise ValueError(
            f"model {name} must know its preprocessing and calibration, got one without them; {REMEDY}"
        )
    try:
        kept = (
            ModelPreprocessing.model_validate(preprocessing),
            Calibration.model_validate(calibration),
            Familiarity.from_model(weights),
        )
        described = migrate_model(config["model"])
        model = ModelParams.model_validate(described)
        told = config.get("classes")  # of a model that tells more than a label
        classes = None if told is None else Classes.model_validate(told)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"model {name} must be of this version, got {where}: {first['msg']}; {REMEDY}"
        ) from error
    policy = AttentionModel.from_description(config | {"model": described})
    policy.load_state_dict(dict(weights.tensors))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # Rewards and losses are for training: here they are empty, and reading one would raise.
    rewards, losses = (
        cast(Any, section).model_construct() for section in (RewardParams, SupervisedParams)
    )
    columns = kept[0].clinical
    task = AttentionTask(
        model,
        rewards,
        losses,
        config["image_size"],
        device,
        kept[0],
        clinical=ClinicalStatistics.neutral(columns) if columns else None,
        classes=classes,
    )
    return Predictor(task, policy.to(device).eval(), *kept)


def has_bag(row: Mapping[str, Any], batch: AttentionBatch) -> bool:
    """Return whether there is a bag of the core's own to estimate the involvement in."""
    return bool(row["bag_mask"]) and bool(batch.bag.any())
