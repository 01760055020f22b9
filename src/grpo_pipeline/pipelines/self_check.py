"""Wiring of the self-check, which tests whether the installed functions and the loop that calls them learn from reward.

The functions are checked by ``core.diagnostics.self_check``, the loop here: the real step on a small task of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from kedro.pipeline import Node, Pipeline
from torch import Generator, Tensor, nn

from grpo_pipeline.core import self_check
from grpo_pipeline.core.diagnostics import set_bandit
from grpo_pipeline.core.diagnostics.bandit import Bandit
from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.sampling.plackett_luce import (
    entropy_of,
    gumbel_top_k,
    independent_logprobs,
    plackett_luce_logprobs,
)
from grpo_pipeline.core.self_check import VariantResult, as_checks
from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.pipelines.step.collect import nothing_replayed
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.nodes import build_state, train
from grpo_pipeline.tasks.base import Task

# The training loop itself, on a bandit of three decisions per sample whose gradient is known: does what is wired learn?
#
# The bandit of ``core.diagnostics.set_bandit`` as a task, trained by the nodes and the loop that train every arm: loader,
# collect, update, optimiser. Its functions can be right and their wiring wrong: another policy's log-probabilities, rewards of
# other samples, a baseline over the whole batch.

STEPS, HIT_RATE, COPIES, SMALL_STEP = 60, 0.9, 1024, 1e-3


@dataclass(frozen=True)
class Prompts:
    """Numbers of the prompts, int64 [P]."""

    rows: Tensor


@dataclass(frozen=True)
class Logits:
    """Scores of the policy for every item of each prompt, [P, V]."""

    logits: Tensor


class SetBanditTask:
    """The bandit of sets as a task; see ``tasks.base.Task`` for what the methods promise.

    Args:
        likelihood: of ordered sets; a defect where it is not ``plackett_luce_logprobs``.
    """

    name, repeats_prompts, components = "set_bandit", True, ("policy",)
    validated_by = "reward/mean"

    def __init__(self, likelihood: set_bandit.Likelihood = plackett_luce_logprobs) -> None:
        self._likelihood = likelihood

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Accept what ``algorithm_params`` returns."""

    def build_policy(self, seed: int) -> Bandit:
        """Return the uniform policy."""
        return Bandit(set_bandit.equal_logits())

    def parameter_groups(self, policy: Bandit) -> dict[str, list[nn.Parameter]]:
        """Return the table of logits."""
        return {"policy": [policy.logits]}

    def rows(self, data: Any, split: str) -> np.ndarray:
        """Return the numbers of the prompts, often enough for one batch."""
        return np.repeat(np.arange(set_bandit.PROMPTS), data)

    def make_batch(
        self, data: Any, rows: np.ndarray, *, generator: Generator | None = None
    ) -> Prompts:
        """Return the prompts."""
        return Prompts(torch.as_tensor(rows))

    def replicate(self, batch: Prompts, group_size: int) -> Prompts:
        """Return the prompts: their good cells are known by number."""
        return batch

    def encode(self, policy: Bandit, batch: Prompts) -> Logits:
        """Return the logits of each prompt."""
        return Logits(policy.logits[batch.rows])

    def detach(self, context: Logits) -> Logits:
        """Return the logits cut off from the graph."""
        return Logits(context.logits.detach())

    @torch.no_grad()
    def sample(
        self,
        policy: Bandit,
        context: Logits,
        group_size: int,
        *,
        temperature: float,
        proposal: str,
        generator: Generator,
    ) -> Rollouts:
        """Draw ordered sets of three cells."""
        allowed = torch.ones_like(context.logits, dtype=torch.bool)
        draw = partial(
            gumbel_top_k, temperature=temperature, generator=generator, is_allowed=allowed
        )
        actions = draw(context.logits, set_bandit.PICKS, group_size)
        return Rollouts(
            actions,
            self._logprobs(context, actions, temperature),
            torch.ones_like(actions, dtype=torch.bool),
        )

    def decode(self, policy: Bandit, context: Logits, rollouts: Rollouts, batch: Prompts) -> Logits:
        """Return the logits: nothing is made of the cells."""
        return context

    def reward(
        self, batch: Prompts, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the hits with the pay of each prompt."""
        return {"hit": set_bandit.rewards(rollouts.actions, batch.rows)}, {"hit": 1.0}

    def score(
        self, policy: Bandit, context: Logits, rollouts: Rollouts, *, temperature: float
    ) -> Scores:
        """Return the log-probabilities of exactly these sets."""
        full = (context.logits / temperature).log_softmax(-1)
        return Scores(
            self._logprobs(context, rollouts.actions, temperature), entropy_of(full), full
        )

    def prompt_weights(self, batch: Prompts) -> None:
        """Return None: every prompt counts the same."""

    def with_reference(self, data: Any, reference: Any) -> Any:
        """Return the data."""
        return data

    @torch.no_grad()
    def score_reference(
        self, reference: Bandit, batch: Prompts, rollouts: Rollouts, *, temperature: float
    ) -> ReferenceScores:
        """Return what the reference says about these sets."""
        return ReferenceScores(
            self.score(
                reference, self.encode(reference, batch), rollouts, temperature=temperature
            ).logprobs
        )

    def supervised_counts(self, batch: Prompts) -> Tensor:
        """Return the number of prompts."""
        return torch.tensor([float(len(batch.rows))], dtype=torch.float64)

    def supervised_loss(
        self,
        policy: Bandit,
        context: Logits,
        batch: Prompts,
        outcomes: Any,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Return 0: nobody shows the good cells."""
        return context.logits.sum() * 0.0

    def validate(
        self, policy: Bandit, data: Any, rows: np.ndarray, *, seed: int, n_samples: int
    ) -> dict[str, float]:
        """Return nothing: what is known exactly is measured beside the loop."""
        return {}

    def fingerprint(self, data: Any, *, draws: bool = True) -> dict[str, Any]:
        """Return nothing: no checkpoint of it is kept."""
        return {}

    def _logprobs(self, context: Logits, actions: Tensor, temperature: float) -> Tensor:
        allowed = torch.ones_like(context.logits, dtype=torch.bool)
        return self._likelihood(
            context.logits, actions, temperature=temperature, is_allowed=allowed
        )


def algorithm_params(update_epochs: int) -> AlgorithmParams:
    """Return GRPO on sets, without terms beside the policy loss."""
    return AlgorithmParams.model_validate(
        {
            "name": "grpo", "supervised_weight": 0.0, "policy_weight": 1.0, "kl_weight": 0.0, "value_weight": 0.0,
            "entropy_weight": 0.0, "update_epochs": update_epochs, "advantage": {"method": "group", "std": "sample"},
            "policy_loss": {"clip_low": 0.2, "clip_high": 0.2, "ratio_level": "joint", "reduction": "per_sequence"},
        }
    )  # fmt: skip


def training_params(batch_size: int, micro_batch_size: int | None) -> TrainingParams:
    """Return a loop of STEPS batches that logs each step and keeps no checkpoint on the way."""
    return TrainingParams.model_validate(
        {
            "device": "cpu", "precision": "float32", "float32_products": "default", "compile": "none",
            "memory_format": "contiguous", "activation_checkpointing": "none",
            "epochs": STEPS, "batch_size": batch_size, "group_size": set_bandit.GROUP,
            "micro_batch_size": micro_batch_size, "encoder_refresh": "every_epoch", "temperature": {"start": 1.0},
            "optimizer": {
                "learning_rates": {"policy": 0.1}, "weight_decay": 0.0, "max_grad_norm": None, "clip": "per_group",
                "learning_rate_schedule": {"start": 1.0},
            },
            "log_every_steps": 1, "checkpoint_every_steps": STEPS, "validate_every_epochs": STEPS,
            "gradient_report_every_steps": STEPS, "validation_samples": 1, "animation_frames": 0, "keep": "last",
        }
    )  # fmt: skip


def check_loop(
    name: str,
    *,
    seed: int,
    micro_batch_size: int | None = None,
    likelihood: set_bandit.Likelihood = plackett_luce_logprobs,
    is_defect: bool = False,
) -> VariantResult:
    """Check the loop: likelihood and gradient of one large batch, and what it learns in ``STEPS`` small ones."""
    task = SetBanditTask(likelihood)
    agreement, cosine = _one_step(
        task, seed=seed, micro_batch_size=None if micro_batch_size is None else COPIES
    )
    reached, used = _learn(task, seed=seed, micro_batch_size=micro_batch_size)
    measured = {
        "loop_likelihood": agreement,
        "loop_gradient_cosine": cosine,
        "loop_hit_rate": reached,
    }
    return VariantResult(name, is_defect, as_checks(measured), steps=used)


def check_training_loop(*, seed: int) -> tuple[VariantResult, ...]:
    """Check the loop on whole batches and on micro-batches; beside them a likelihood of independent draws, which must fail."""
    return (
        check_loop("training_loop", seed=seed),
        check_loop("loop_of_micro_batches", seed=seed, micro_batch_size=3),
        check_loop(
            "loop_of_independent_draws", seed=seed, likelihood=independent_logprobs, is_defect=True
        ),
    )


def _one_step(
    task: SetBanditTask, *, seed: int, micro_batch_size: int | None
) -> tuple[float, float]:
    """Take one plain gradient step from shuffled logits: how likely its samples are said to be, and where it leads."""
    start = set_bandit.shuffled_logits(seed)
    policy = Bandit(start.clone())
    state = TrainState(
        policy, torch.optim.SGD(policy.parameters(), lr=SMALL_STEP), None, 0, 0, seed
    )
    rows = task.rows(COPIES, "train")
    runner = StepRunner(
        cast(Task, task), algorithm_params(1), training_params(len(rows), micro_batch_size)
    )
    with quiet_nodes():
        done = runner.run(state, task.make_batch(None, rows), nothing_replayed())
    rollouts = done.experience.rollouts
    exact = set_bandit.exact_logprobs(start[torch.as_tensor(rows)], rollouts.actions)
    agreement = 1.0 - float((rollouts.logprobs.sum(-1) - exact).abs().max())
    moved = (policy.logits.detach() - start).flatten()
    return agreement, float(
        torch.cosine_similarity(moved, set_bandit.enumerated_gradient(start).flatten(), dim=0)
    )


def _learn(task: SetBanditTask, *, seed: int, micro_batch_size: int | None) -> tuple[float, int]:
    """Train from the uniform policy until the hit rate is reached; return it and the batches used."""
    copies = 2
    algorithm, training = (
        algorithm_params(4),
        training_params(copies * set_bandit.PROMPTS, micro_batch_size),
    )
    state = build_state(algorithm, training, seed, cast(Task, task), copies)
    reached, used = 0.0, 0
    policy = cast(Bandit, state.policy)
    for rows, _ in train(
        algorithm, training, "never", cast(Task, task), copies, state, NoCheckpoint("nowhere"), {}
    ):
        reached, used = float(set_bandit.hit_rate(policy.logits.detach())), used + len(rows)
        if reached >= HIT_RATE:
            break
    return reached, used


def run_self_check(seed: int) -> dict[str, Any]:
    """Run all variants on the bandits, then the training loop; return the figures as JSON values, whether they passed or not."""
    found = self_check.run_self_check(seed)
    return replace(found, variants=(*found.variants, *check_training_loop(seed=seed))).to_dict()


def report_self_check(result: Mapping[str, Any]) -> str:
    """Return the figures as a text table.

    Raises:
        SelfCheckError: if the check did not pass; the result has been saved by then.
    """
    self_check.require_passed(result)
    return self_check.format_table(result)


def create_pipeline() -> Pipeline:
    """Wire the seed -> ``self_check.result`` (JSON) -> ``self_check.table`` (text)."""
    return Pipeline(
        [
            Node(
                run_self_check,
                "params:seed",
                "self_check.result",
                name="run_self_check",
                namespace="self_check",
            ),
            Node(
                report_self_check,
                "self_check.result",
                "self_check.table",
                name="report_self_check",
                namespace="self_check",
            ),
        ]
    )
