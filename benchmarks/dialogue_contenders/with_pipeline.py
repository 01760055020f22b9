"""Our step: the step pipeline of the project, folded as in training, on the dialogue task."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from dialogue_contenders.workload import CLIP, LEARNING_RATE, WEIGHT_DECAY, WEIGHTS, Workload
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.build import build_task
from grpo_pipeline.tasks.dialogue.language_model.params import (
    FolderParams,
    LanguageModelParams,
    LoraTuning,
    ReplyParams,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens, pad_rows
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.task import DialogueTask

PARAMETERS = (
    Path(__file__).resolve().parents[2] / "conf" / "base" / "dialogue" / "parameters_training.yml"
)


@dataclass(frozen=True)
class ReinforcementAlone(DialogueTask):
    """The task without its loss on reference replies, which the other contenders do not have either."""

    def check_data(self, data: Any) -> None:
        """Check nothing: the data are the number of prompts."""

    def rows(self, data: Any, split: str) -> np.ndarray:
        """Return as many rows as there are prompts; the batch is given, and no row is looked up."""
        return np.arange(data)

    def supervised_loss(
        self, policy: Any, context: Any, batch: Any, outcomes: Any, shares: Tensor | None = None
    ) -> Tensor:
        """Return 0."""
        return torch.zeros(())


class Hybrid(ReinforcementAlone):
    """The whole task: the loss on reference replies, too."""

    supervised_loss = DialogueTask.supervised_loss


class PipelineStep:
    """Holds the state; ``step`` takes one step.

    Args:
        workload: the sizes.
        folder: of the start weights.
        kind: with the supervised loss (``Hybrid``) or without.
    """

    def __init__(
        self, workload: Workload, folder: str, kind: type[ReinforcementAlone] = ReinforcementAlone
    ) -> None:
        self.workload = workload
        self.training, self.algorithm = training_params(workload), algorithm_params(workload)
        self.task = make_task(workload, folder, self.training, kind)
        self.batch = make_batch(workload, self.task)
        self.state: TrainState = build_state(
            self.algorithm, self.training, workload.seed, self.task, workload.prompts
        )
        self._runner = StepRunner(self.task, self.algorithm, self.training)

    def step(self) -> int:
        """Take one step; returns the number of tokens written."""
        done = self._runner.run(self.state, self.batch)
        self.state = done.state
        return int(done.experience.rollouts.is_valid.sum())


def training_params(workload: Workload) -> TrainingParams:
    """Return the loop's parameters: those of conf/base, but for the sizes and the optimiser."""
    rates = {"embeddings": LEARNING_RATE, "encoder": LEARNING_RATE, "decoder": LEARNING_RATE}
    optimizer = {
        "learning_rates": rates,
        "weight_decay": WEIGHT_DECAY,
        "max_grad_norm": workload.max_grad_norm,
        "clip": "joint",
        "learning_rate_schedule": {"kind": "constant", "start": 1.0, "end": 1.0},
    }
    sizes = {"batch_size": workload.prompts, "group_size": workload.group_size, "device": "cpu"}
    base = yaml.safe_load(PARAMETERS.read_text(encoding="utf-8"))["dialogue"]["training"]
    return TrainingParams(
        **{**base, **sizes, "optimizer": optimizer, "gradient_report_every_steps": 10**9}
    )


def algorithm_params(workload: Workload) -> AlgorithmParams:
    """Return GRPO with one update epoch and the KL in the loss."""
    policy = {
        "kind": "grpo",
        "weight": 1.0,
        "clip_low": CLIP,
        "clip_high": CLIP,
        "ratio_level": "decision",
        "reduction": "per_sequence",
    }
    return AlgorithmParams.model_validate(
        {
            "losses": {
                "supervised": {"weight": 1.0},
                "policy": policy,
                "kl": {"weight": workload.beta, "estimator": "k3"},
            },
            "update_epochs": 1,
            "advantage": {"method": "group", "std": "sample"},
        }
    )


def language_model(workload: Workload, folder: str) -> LanguageModelParams:
    """Return the network of the folder, with low-rank updates where the workload has a rank."""
    network = FolderParams(
        kind="folder",
        path=folder,
        tokenizer="bytes",
        weights=workload.weights,
        recompute_layers=workload.recompute_layers,
    )
    tuning = (
        LoraTuning(kind="lora", rank=workload.rank, alpha=2.0 * workload.rank)
        if workload.rank
        else None
    )
    return LanguageModelParams(network=network, tuning=tuning)


def make_task(
    workload: Workload, folder: str, training: TrainingParams, kind: type[ReinforcementAlone]
) -> ReinforcementAlone:
    """Return the task; its rewards are measured in this process, as those of the others are."""
    limits: dict[str, Any] = {
        "temperature": 1.0,
        "top_k": None,
        "top_p": None,
        "tokens_per_batch": None,
    }
    letters = {"function": "dialogue_contenders.workload:letters", "weight": WEIGHTS["letters"]}
    terms = {name: {"weight": weight} for name, weight in WEIGHTS.items() if name != "letters"}
    pool = PoolParams(
        workers=0, timeout_seconds=60.0, chunk_size=10**6, cache_size=0, failure="stop"
    )
    built = build_task(
        language_model(workload, folder),
        PromptParams(max_tokens=workload.prompt_tokens, too_long="refuse"),
        ReplyParams(max_tokens=workload.new_tokens, **limits),
        DialogueReward.model_validate(terms | {"own": {"letters": letters}}),
        pool,
        SupervisedParams(mean="per_token"),
        execution=training,
    )
    return kind(**{field.name: getattr(built, field.name) for field in fields(built) if field.init})


def make_batch(workload: Workload, task: DialogueTask) -> DialogueBatch:
    """Return the prompts as a batch of the task."""
    ids = workload.ids[:, None]
    first, tokens = [texts[0] for texts in workload.answers], task.tokenizer
    return DialogueBatch(
        rows=torch.arange(workload.prompts),
        prompt=Tokens(ids, torch.ones_like(ids, dtype=torch.bool)),
        reference=pad_rows(
            [[*tokens.encode(text)[: workload.new_tokens - 1], tokens.eos_id] for text in first],
            pad_id=tokens.pad_id,
        ),
        answers=PerPrompt(tuple(texts) for texts in workload.answers),
        questions=PerPrompt("" for _ in workload.answers),  # read by rewards of the user's alone
        cells=PerPrompt("{}" for _ in workload.answers),
    )
