"""The attention task: a policy chooses k points in an ultrasound image; decoders turn them into a prediction and a heatmap."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.core.ranking import first_largest
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.core.storage.weights import ModelWeights, digest_of_tensors
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.tasks.attention.augmentation import augment
from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.batch import (
    AttentionBatch,
    AttentionContext,
    AttentionData,
    Outcomes,
    make_batch,
    show_lesion,
    shown_outlines,
)
from grpo_pipeline.tasks.attention.clinical import ClinicalStatistics, drop_values, fit_statistics
from grpo_pipeline.tasks.attention.data.aggregate_params import AggregateParams
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.preprocessing_params import ModelPreprocessing
from grpo_pipeline.tasks.attention.evaluation import audit, evaluate, showcase
from grpo_pipeline.tasks.attention.inference import appearance
from grpo_pipeline.tasks.attention.inference.calibration_fit import calibrate
from grpo_pipeline.tasks.attention.losses.bags import has_bag, has_outline, mean_over_bags
from grpo_pipeline.tasks.attention.losses.location import location_loss
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.losses.ridge import penalty
from grpo_pipeline.tasks.attention.losses.sample_choice import (
    best_samples,
    last_samples,
    take_samples,
)
from grpo_pipeline.tasks.attention.losses.supervised_loss import (
    BAGS,
    CORES,
    OUTLINES,
    share_of,
    supervised_counts,
    supervised_loss,
)
from grpo_pipeline.tasks.attention.model.baselines import blob_prior
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import PointDecoder
from grpo_pipeline.tasks.attention.model.encoder.encoder_input import GreyBatch
from grpo_pipeline.tasks.attention.model.encoder.outline_pretraining import (
    OutlineTask,
    begin_with_pretraining,
)
from grpo_pipeline.tasks.attention.model.encoder.pretrained import fingerprint_of
from grpo_pipeline.tasks.attention.model.encoder_execution import prepare_model
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.model.point_sets import (
    SetLogits,
    chosen_points,
    draw_sets,
    empty_sets,
    factor_logprobs,
    score_sets,
    set_entropy,
)
from grpo_pipeline.tasks.attention.model.proposals import proposal_logits
from grpo_pipeline.tasks.attention.model.sam import cell_centres
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.rewards.priority import advantage_factors
from grpo_pipeline.tasks.attention.rewards.reward import reward_components
from grpo_pipeline.tasks.attention.section_checks import check_sections
from grpo_pipeline.tasks.attention.stored_pixels import read_pixels
from grpo_pipeline.tasks.audit_plan import AuditPlan
from grpo_pipeline.tasks.base import BaseTask, Proposal
from grpo_pipeline.tasks.familiarity import Familiarity

GLIMPSE_BAG_CELLS = 8
"""Of the bag, that a decoder of points is asked about for the involvement."""
REFERENCE_BATCH = 64


@dataclass(frozen=True)
class AttentionTask(BaseTask):
    """Implements :class:`grpo_pipeline.tasks.base.Task` for point prompts (L = k points, V = cells of the grid).

    ``clinical`` names the columns that become prompts, normalised by the training rows of one split; None without them.
    ``start`` are the weights of a pretraining, of the pixels; None for fresh ones.
    ``classes`` are those that the class decoder tells apart; None for a label. ``heatmap_level`` is where an untrained heatmap
    starts, in log-odds (``build.heatmap_level``).
    """

    model: ModelParams
    rewards: RewardParams
    supervised: SupervisedParams
    image_size: int
    device: torch.device
    preprocessing: ModelPreprocessing | None = None
    name: str = "attention"
    components: ClassVar[tuple[str, ...]] = (
        "encoder",
        "policy_encoder",
        "policy_head",
        "value_head",
        "mask_decoder",
        "class_decoder",
        "clinical",
        "detail",
    )
    section_fields: ClassVar[Mapping[str, str]] = {
        "reward": "rewards",
        "supervised_loss": "supervised",
    }
    clinical: ClinicalStatistics | None = None
    execution: ExecutionParams | None = None
    augmentation: AugmentationParams | None = None
    start: ModelWeights | None = field(default=None, repr=False)
    classes: Classes | None = None
    heatmap_level: float = 0.0

    @property
    def grid(self) -> int:
        """Side of the cell grid."""
        return self.image_size // self.model.patch_size

    @property
    def repeats_prompts(self) -> bool:
        """Whether a core is the same prompt in every batch: not where augmentation moves it."""
        return self.augmentation is None or not self.augmentation.moves

    @property
    def validated_by(self) -> str:
        """The AUROC of the validation pictures, as the test split is judged by."""
        return "auroc"

    def with_sections(self, sections: Mapping[str, Any], *, path: str) -> Self:
        """Return the task of an arm with sections of its own.

        Raises:
            ValueError: if a section cannot be an arm's own, its values are not right, or sections do not go together.
        """
        changed = super().with_sections(sections, path=path)
        check_sections(changed.model, changed.rewards, changed.supervised)
        return changed

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Refuse credit per turn or beside a reward of whole sets, and replay where augmentation moves the images."""
        super().check_algorithm(algorithm)
        if algorithm.replay is not None and not self.repeats_prompts:
            raise ValueError(
                "replay must be null where attention.augmentation moves the images, got a value; stored points belong to the "
                "place that an image had: keep to gain, gamma and speckle, or leave replay out"
            )
        if algorithm.credits_decisions and self.rewards.diversity:
            raise ValueError(
                f"reward.diversity must be null with advantage.credit = {algorithm.advantage.credit}, got a value; it compares "
                "whole sets with each other: use credit = set"
            )

    def build_policy(self, seed: int) -> AttentionModel:
        """Return a freshly initialised model; leaves the global random state as it was."""
        with drawn_on_the_cpu(seed):
            policy = AttentionModel(
                self.model,
                self.image_size,
                clinical=self.clinical,
                classes=self.classes,
                heatmap_level=self.heatmap_level,
            ).to(self.device)
        if self.start is not None:
            begin_with_pretraining(policy, self.start)
        return policy if self.execution is None else prepare_model(policy, self.execution)

    def open_stage(self, stage: str) -> OutlineTask:
        """Return the task of the stage ``pretraining``, which draws the shown outlines."""
        return OutlineTask(self, self.device)

    def parameter_groups(self, policy: AttentionModel) -> dict[str, list[nn.Parameter]]:
        """Return the trainable parameters of each component."""
        groups = {
            name: [p for m in modules for p in m.parameters() if p.requires_grad]
            for name, modules in policy.components().items()
        }
        return {name: parameters for name, parameters in groups.items() if parameters}

    def rows(self, data: AttentionData, split: str) -> np.ndarray:
        """Return the row numbers of a split."""
        return data.examples.rows(split)

    def make_batch(
        self, data: AttentionData, rows: np.ndarray, *, generator: Generator | None = None
    ) -> AttentionBatch:
        """Return the batch of these rows on the task's device; with a generator, one to train on: augmented, if that is on."""
        shown, share = None, self.supervised.mask_share
        if share is not None:
            shown = shown_outlines(data.examples, rows, share)
        pixels = read_pixels(
            data.examples, rows, device=self.device, with_lesion=data.shows_lesion, shown=shown
        )
        if self.augmentation is not None and generator is not None:
            pixels = augment(
                pixels,
                self.augmentation,
                grid=self.grid,
                points=self.model.points,
                generator=generator,
            )
            # What is known of the stored images does not hold for these: the reference looks at them itself.
            data = replace(data, reference_logits=None)
        columns = () if self.clinical is None else self.clinical.columns
        batch = make_batch(
            data,
            rows,
            grid=self.grid,
            device=self.device,
            clinical=columns,
            pixels=pixels,
            folds=self.model.folds,
        )
        if generator is not None and self.model.clinical is not None and batch.clinical is not None:
            batch = replace(
                batch,
                clinical=drop_values(
                    batch.clinical, self.model.clinical.dropout, generator=generator
                ),
            )
        if self.model.checkpoint is None or data.features is not None:
            return batch
        return GreyBatch(**vars(batch), grey=pixels.images)

    def replicate(self, batch: AttentionBatch, group_size: int) -> AttentionBatch:
        """Return the batch with label and involvement as [P, G] views."""
        return replace(
            batch,
            label=replicate(batch.label, group_size),
            involvement=replicate(batch.involvement, group_size),
        )

    def encode(self, policy: AttentionModel, batch: AttentionBatch) -> AttentionContext:
        """Run SAM's image encoder (or take a frozen one's stored features) and the filter bank, once per core."""
        features = policy.encode(batch) if batch.features is None else batch.features
        texture = policy.texture.describe_cells(batch.images, self.grid)
        detail, detail_cells = policy.describe_detail(batch.images)
        return AttentionContext(
            features=features,
            texture=texture,
            images=batch.images,
            cells=batch.cells,
            lesion_cells=batch.lesion_cells,
            statistics=policy.describe_fields(batch),
            prior=self._prior(batch),
            region=policy.describe_region(batch),
            folds=batch.folds,
            clinical=batch.clinical,
            detail=detail,
            detail_cells=detail_cells,
            policy_features=policy.encode_for_policy(batch),
        )

    def _prior(self, batch: AttentionBatch) -> Tensor | None:
        prior = self.model.policy.prior
        if prior is None:
            return None
        return blob_prior(
            batch.images,
            batch.cells,
            self.grid,
            strength=prior.strength,
            widths=prior.widths,
        )

    def detach(self, context: AttentionContext) -> AttentionContext:
        """Return the context with features cut off from the encoders."""
        learned = ("features", "policy_features", "texture", "detail", "detail_cells")
        parts = {name: getattr(context, name) for name in learned}
        return replace(context, **{n: x.detach() for n, x in parts.items() if x is not None})

    @torch.no_grad()
    def sample(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> Rollouts:
        """Draw G sets of points without replacement from the policy's map or another proposal; ``none``: of 0 points."""
        if proposal == "none":
            return empty_sets(len(context.cells), group_size, device=context.cells.device)
        logits = proposal_logits(policy, context, proposal)
        return draw_sets(
            self.model,
            logits,
            context.cells,
            group_size,
            temperature=temperature,
            generator=generator,
        )

    def decode(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        rollouts: Rollouts,
        batch: AttentionBatch,
    ) -> Outcomes:
        """Decode the sampled points with the image features shared by the group."""
        return self._decode(
            policy,
            context,
            rollouts,
            batch,
            has_padding=self.model.policy.stop is not None,
            with_segmentation=self.segments,
        )

    @property
    def segments(self) -> bool:
        """Whether a loss or a reward reads the prompted mask."""
        return self.supervised.outline is not None or self.rewards.dice is not None

    def _decode(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        rollouts: Rollouts,
        batch: AttentionBatch,
        *,
        has_padding: bool,
        with_heatmap: bool = True,
        with_segmentation: bool = False,
    ) -> Outcomes:
        placed = chosen_points(rollouts, context.cells.shape[1])
        points = cell_centres(placed.actions, self.grid)
        is_point = placed.is_valid if has_padding else None
        outcomes = policy.decode(
            context.features,
            context.images,
            points,
            batch.bag,
            batch.clinical,
            is_point=is_point,
            statistics=context.statistics,
            region=context.region,
            folds=context.folds,
            with_heatmap=with_heatmap,
            with_segmentation=with_segmentation,
            detail=context.detail,
            heat=policy.map_heat(context)
            if with_heatmap and self.model.heatmap is not None
            else None,
        )
        return replace(outcomes, rollouts=rollouts)

    def reward(
        self, batch: AttentionBatch, rollouts: Rollouts, outcomes: Outcomes
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return ``class``, ``heatmap``, with a stop decision ``points``, the parts of the points that count, and the weights."""
        parts = reward_components(
            batch,
            chosen_points(rollouts, batch.cells.shape[1]),
            outcomes,
            self.rewards,
            grid=self.grid,
            with_points=self.model.policy.stop is not None,
        )
        weights = self.rewards.weights
        return parts, {name: weights[name] for name in parts}

    @torch.no_grad()
    def subset_rewards(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        rollouts: Rollouts,
        batch: AttentionBatch,
        *,
        kept: Tensor,
    ) -> Tensor:
        """Return the rewards of parts of each set of points, [P, G, M], decoded as G * M sets of an image; a stop is no point.

        Heatmaps are decoded only where a weighted component reads them.
        """
        n_prompts, group_size, k = rollouts.actions.shape
        shape = (n_prompts, group_size, len(kept), k)
        whole = (rollouts.actions, rollouts.logprobs, rollouts.is_valid)
        actions, logprobs, is_valid = (x[:, :, None].expand(shape) for x in whole)
        parts = [x.flatten(1, 2) for x in (actions, logprobs, is_valid & kept)]  # [P, G * M, k]
        sets = Rollouts(*parts)
        targets = replace(batch, label=batch.label[:, 0], involvement=batch.involvement[:, 0])
        targets = self.replicate(targets, group_size * len(kept))
        outcomes = self._decode(
            policy,
            context,
            sets,
            targets,
            has_padding=True,
            with_heatmap=self.rewards.reads_heatmap,
            with_segmentation=self.rewards.dice is not None,
        )
        measured = combine_rewards(*self.reward(targets, sets, outcomes))
        return measured.total.reshape(shape[:3])

    def score(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        rollouts: Rollouts,
        *,
        temperature: float,
    ) -> Scores:
        """Score exactly these sets; entropy and full distribution are those of the first draw and the stops (``n_samples``)."""
        logits, values = policy.propose(context)
        return Scores(
            logprobs=self._logprobs(logits, rollouts, context.cells, temperature=temperature),
            entropy=set_entropy(logits, context.cells, temperature=temperature),
            log_probs_full=factor_logprobs(logits, context.cells, temperature=temperature),
            values=values,
        )

    def _logprobs(
        self, logits: SetLogits, rollouts: Rollouts, cells: Tensor, *, temperature: float
    ) -> Tensor:
        return score_sets(
            self.model,
            logits,
            rollouts.actions,
            rollouts.is_valid,
            temperature=temperature,
            is_allowed=cells,
        )

    def prompt_weights(self, batch: AttentionBatch) -> Tensor | None:
        """Return the factor on the advantages of each core, [P]; None without a priority."""
        priority = self.rewards.priority
        return None if priority is None else advantage_factors(batch.grade_group, priority)

    def with_reference(self, data: AttentionData, reference: AttentionModel) -> AttentionData:
        """Return the data with the reference policy's logits of every core: neither of the two changes in a run.

        With augmentation the images do change: then the data is returned as it is.
        """
        if self.augmentation is not None:
            return data
        rows = np.arange(len(data.examples.table))
        logits = []
        with torch.no_grad():
            for start in range(0, len(rows), REFERENCE_BATCH):
                context = self.encode(
                    reference, self.make_batch(data, rows[start : start + REFERENCE_BATCH])
                )
                logits.append(reference.propose(context)[0].packed().cpu().numpy())
        return replace(data, reference_logits=np.concatenate(logits))

    def with_oracle(self, data: AttentionData) -> AttentionData:
        """Return the data with batches that hold the lesion: only for an arm that draws its points there."""
        return show_lesion(data)

    @torch.no_grad()
    def score_reference(
        self,
        reference: AttentionModel,
        batch: AttentionBatch,
        rollouts: Rollouts,
        *,
        temperature: float,
    ) -> ReferenceScores:
        """Score these points, and the whole map, by the reference policy: from its stored logits, or by running it."""
        if batch.reference_logits is None:
            logits = reference.propose(self.encode(reference, batch))[0]
        else:
            logits = SetLogits.unpacked(batch.reference_logits, batch.cells.shape[1])
        return ReferenceScores(
            logprobs=self._logprobs(logits, rollouts, batch.cells, temperature=temperature),
            log_probs_full=factor_logprobs(logits, batch.cells, temperature=temperature),
        )

    def supervised_loss(
        self,
        policy: AttentionModel,
        context: AttentionContext,
        batch: AttentionBatch,
        outcomes: Outcomes,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return the losses of class and bag over the chosen samples of the group, and the glimpse decoder's over the cores."""
        involvement = (
            self._glimpse_involvement(policy, context, batch) if self.supervised.glimpse else None
        )
        if self.supervised.samples != "all":
            batch, outcomes = take_samples(batch, outcomes, self._choose_samples(batch, outcomes))
        loss = supervised_loss(
            batch, outcomes, self.supervised, glimpse_involvement=involvement, shares=shares
        )
        if self.supervised.ridge:
            of_cores = share_of(shares, CORES, loss)
            loss = loss + self.supervised.ridge.weight * of_cores * penalty(
                policy.class_decoder, self.model.folds
            )
        if self.supervised.location:
            located = location_loss(policy.propose(context)[0].cells, batch, self.grid)
            # The outlines that are shown; without a share of them the bags.
            by_bags = batch.outline is None
            members = has_bag(batch) if by_bags else has_outline(batch)
            of_members = share_of(shares, BAGS if by_bags else OUTLINES, loss)
            term = mean_over_bags(located[:, None], members)
            loss = loss + self.supervised.location.weight * of_members * term
        return loss

    def supervised_counts(self, batch: AttentionBatch) -> Tensor:
        """Return the numbers of cores, of those with a bag, and with outlines of those that are shown: float64 [2] or [3]."""
        return supervised_counts(batch)

    def _choose_samples(self, batch: AttentionBatch, outcomes: Outcomes) -> Tensor:
        """Return the number of the sample that each core's decoders learn from, int64 [P]."""
        if self.supervised.samples == "one":
            return last_samples(batch.label)
        if outcomes.rollouts is None:
            raise ValueError(
                "outcomes must hold their rollouts for samples = best, got None; make them with AttentionTask.decode"
            )
        return best_samples(combine_rewards(*self.reward(batch, outcomes.rollouts, outcomes)).total)

    def _glimpse_involvement(
        self, policy: AttentionModel, context: AttentionContext, batch: AttentionBatch
    ) -> Tensor | None:
        """Ask a decoder that reads points about the cells that the bag covers most."""
        if not isinstance(policy.class_decoder, PointDecoder):
            return None
        coverage = adaptive_avg_pool2d(batch.bag, self.grid).flatten(1)
        # Many cells are covered wholly: of equal ones the first, on every device.
        covered, most = first_largest(coverage, min(GLIMPSE_BAG_CELLS, coverage.shape[1]))
        return policy.class_decoder.estimate_involvement(
            batch.images if context.statistics is None else context.statistics,
            cell_centres(most, self.grid),
            covered > 0,
            context.folds,
        )

    # How it is judged and shown: functions of ``evaluation``, whose first argument is the task.
    evaluate, validate, audit, calibrate = (
        evaluate.evaluate,
        evaluate.validate,
        audit.audit,
        calibrate,
    )
    tabulate, showcase, training_frame = (
        showcase.tabulate,
        showcase.showcase,
        showcase.training_frame,
    )

    @property
    def aggregate(self) -> AggregateParams:
        """How probabilities of frames become that of their core, and those of cores that of their patient."""
        return AggregateParams() if self.preprocessing is None else self.preprocessing.aggregate

    @property
    def audit_plan(self) -> AuditPlan:
        """Return the point rules that a reward audit compares, and what it reads beside the reward."""
        return audit.audit_plan(self.rewards)

    def describe_inputs(self, policy: AttentionModel, data: AttentionData) -> Familiarity:
        """Return how far images are from the training images, with a limit fitted to the validation images."""
        return appearance.describe_inputs(self, policy, data)

    def describe(self, policy: AttentionModel) -> dict[str, Any]:
        """Return the model's parameters, image size, preprocessing and clinical columns, and the architecture of a checkpoint."""
        described: dict[str, Any] = {
            "task": self.name,
            "image_size": self.image_size,
            "model": self.model.model_dump(),
        }
        described |= (
            {} if self.clinical is None else {"clinical_columns": list(self.clinical.columns)}
        )
        described |= (
            {} if self.classes is None else {"classes": self.classes.model_dump(mode="json")}
        )
        described |= {"heatmap_level": self.heatmap_level} if self.heatmap_level else {}
        described |= (
            {}
            if self.preprocessing is None
            else {"preprocessing": self.preprocessing.model_dump(mode="json")}
        )
        return (
            described
            if self.model.checkpoint is None
            else described | {"sam_config": policy.sam.net.config.to_dict()}
        )

    def fingerprint(self, data: AttentionData, *, draws: bool = True) -> dict[str, Any]:
        """Return model, rewards, losses and the digests of the examples and of the checkpoint's content.

        Raises:
            ValueError: if the clinical columns are normalised by other rows than the training rows of the data.
        """
        sections = {"supervised_loss": self.supervised} | (
            {"reward": self.rewards} if draws else {}
        )
        digest = hashlib.sha256("".join(data.examples.table["split"]).encode()).hexdigest()
        dumped = {"model": self.model.decisive()}
        dumped |= {name: decisive(section) for name, section in sections.items()}
        checkpoint = (
            {}
            if self.model.checkpoint is None
            else {"checkpoint": fingerprint_of(self.model.checkpoint)}
        )
        if self.augmentation is not None:
            dumped["augmentation"] = decisive(self.augmentation)
        if self.start is not None:
            dumped["start"] = {"weights": digest_of_tensors(self.start.tensors)}
        if self.classes is not None:
            dumped["classes"] = decisive(self.classes)
        if self.heatmap_level:  # a checkpoint of before had none
            dumped["heatmap_level"] = {"log_odds": self.heatmap_level}
        return (
            dumped
            | {"examples": data.examples.digest, "split": digest}
            | checkpoint
            | self._clinical_fingerprint(data)
        )

    def _clinical_fingerprint(self, data: AttentionData) -> dict[str, Any]:
        if self.clinical is None:
            return {}
        if self.clinical != fit_statistics(data.examples.table, self.clinical.columns):
            raise ValueError(
                "the clinical columns must be normalised by the training rows of the data, got a task that was built for "
                "another split; build the task with build_task from these examples"
            )
        return {"clinical_columns": list(self.clinical.columns)}
