"""TRL's own code on our cases: the trainers' methods are called on a stub that has only what they read.

``_compute_loss`` gets log-probabilities in place of a model; ``_generate_and_score_completions`` gets rewards in place of text.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import constants
import torch
from cases import LogitsCase, LossCase, RewardCase
from outcomes import Outcome, with_gradient
from torch import Tensor
from trl import GRPOTrainer, RLOOTrainer
from trl.trainer.utils import entropy_from_logits, selective_log_softmax

from grpo_pipeline.core.objective.surrogates.vespo import POWER_NEGATIVE, POWER_POSITIVE, RATE_NEGATIVE, RATE_POSITIVE

# One process, one micro-batch: what is gathered or reduced over processes is what this process has.
ACCELERATOR = SimpleNamespace(
    device=torch.device("cpu"),
    process_index=0,
    num_processes=1,
    sync_gradients=True,
    gather=lambda x: x,
    pad_across_processes=lambda x, dim, pad_index: x,
    gather_for_metrics=lambda x: x,
    reduce=lambda x, reduction: x,
)
MODEL = SimpleNamespace(training=True, is_gradient_checkpointing=False)


def loss_stub(
    logprobs: Tensor,
    loss_type: str,
    *,
    level: str,
    beta: float,
    corrected: bool,
    delta: float | None,
    entropies: Tensor | None = None,
) -> Any:
    """Return what ``_compute_loss`` reads of a trainer; the model's log-probabilities are given, and entropies that choose."""
    args = SimpleNamespace(
        delta=delta,
        sapo_temperature_pos=constants.TAU_POSITIVE,
        sapo_temperature_neg=constants.TAU_NEGATIVE,
        vespo_k_pos=POWER_POSITIVE,
        vespo_lambda_pos=RATE_POSITIVE,
        vespo_k_neg=POWER_NEGATIVE,
        vespo_lambda_neg=RATE_NEGATIVE,
        use_bias_correction_kl=corrected,
        steps_per_generation=1,
    )
    measured = torch.zeros_like(logprobs) if entropies is None else entropies
    stub = SimpleNamespace(
        args=args,
        accelerator=ACCELERATOR,
        model=MODEL,
        loss_type=loss_type,
        importance_sampling_level=level,
        beta=beta,
        epsilon_low=constants.CLIP_LOW,
        epsilon_high=constants.RATIO_CAP if loss_type == "cispo" else constants.CLIP_HIGH,
        max_completion_length=logprobs.shape[1] + constants.EXTRA_LENGTH,
        current_gradient_accumulation_steps=1,
        top_entropy_quantile=1.0 if entropies is None else constants.TOP_ENTROPY,
        off_policy_mask_threshold=None,
        aux_loss_enabled=False,
        use_vllm=False,
        _entropy_bonus_enabled=False,
        _metrics=defaultdict(lambda: defaultdict(list)),
        _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, measured, None),
    )
    stub.get_high_entropy_mask = partial(GRPOTrainer.get_high_entropy_mask, stub)
    stub.get_gamma_weights = GRPOTrainer.get_gamma_weights
    return stub


def loss_inputs(case: LossCase, num_items: float | None = None) -> dict[str, Tensor]:
    """Return a case as the trainer's batch, rows [N, L]; the token ids are of no consequence."""
    mask = case.is_valid.flatten(0, 1).long()
    ids = torch.zeros_like(mask)
    return {
        "prompt_ids": ids[:, :1],
        "prompt_mask": torch.ones_like(ids[:, :1]),
        "completion_ids": ids,
        "completion_mask": mask,
        "advantages": case.advantages.flatten(),
        "old_per_token_logps": case.old_logprobs.flatten(0, 1),
        "ref_per_token_logps": case.ref_logprobs.flatten(0, 1),
        "old_logps": (case.old_logprobs.flatten(0, 1) * mask).sum(1),
        "num_items_in_batch": mask.sum() if num_items is None else torch.tensor(num_items),
    }


def loss(
    case: LossCase,
    *,
    loss_type: str,
    level: str = "token",
    beta: float = 0.0,
    corrected: bool = False,
    delta: float | None = None,
    num_items: float | None = None,
    chosen: bool = False,
) -> Outcome:
    """Return ``GRPOTrainer._compute_loss`` and its gradient with respect to the log-probabilities."""

    def compute(logprobs: Tensor) -> Tensor:
        entropies = case.entropies.flatten(0, 1) if chosen else None
        options = {"level": level, "beta": beta, "corrected": corrected, "delta": delta, "entropies": entropies}
        stub = loss_stub(logprobs.flatten(0, 1), loss_type, **options)
        return GRPOTrainer._compute_loss(stub, None, loss_inputs(case, num_items))

    return with_gradient(compute, case.logprobs)


def rloo_loss(case: LossCase) -> Outcome:
    """Return ``RLOOTrainer._compute_loss``, whose ratio is that of the whole row."""

    def compute(logprobs: Tensor) -> Tensor:
        stub = loss_stub(logprobs.flatten(0, 1), "rloo", level="sequence", beta=0.0, corrected=False, delta=None)
        return RLOOTrainer._compute_loss(stub, None, loss_inputs(case))

    return with_gradient(compute, case.logprobs)


def reward_stub(parts: Tensor, weights: Tensor, *, scale: str, aggregation: str) -> Any:
    """Return what ``_generate_and_score_completions`` reads of a trainer, for parts [P, G, K]; a sample is one made-up token."""
    rows, names = parts.shape[0] * parts.shape[1], [f"part {number}" for number in range(parts.shape[2])]
    ids = [[1]] * rows
    config = SimpleNamespace(
        per_device_train_batch_size=rows,
        steps_per_generation=1,
        gradient_accumulation_steps=1,
        gradient_checkpointing_kwargs=None,
    )
    return SimpleNamespace(
        args=config,
        accelerator=ACCELERATOR,
        model=MODEL,
        environment_factories=None,
        environments=None,
        tools=None,
        use_vllm=False,
        beta=0.0,
        pad_to_multiple_of=None,
        mask_truncated_completions=False,
        num_generations=parts.shape[1],
        num_iterations=1,
        scale_rewards=scale,
        normalize_advantages=False,
        reward_clip_range=None,
        multi_objective_aggregation=aggregation,
        reward_funcs=names,
        reward_func_names=names,
        reward_weights=weights,
        _tokenizer=SimpleNamespace(pad_token_id=0),
        _generate=lambda prompts: (ids, ids, None, prompts, None, {}, None, None),
        _calculate_rewards=lambda *_: parts.flatten(0, 1).clone(),
        _get_per_token_logps_and_entropies=lambda *_, **__: (torch.zeros(rows, 1), None, None),
        _metrics=defaultdict(lambda: defaultdict(list)),
        _logs={name: [] for name in ("prompt", "completion", "advantages", "images")}
        | {"rewards": defaultdict(list), "extra": defaultdict(list)},
        _pending_extra_logs={},
        _pending_metrics={},
    )


def advantages(parts: Tensor, weights: Tensor, *, scale: str = "group", aggregation: str = "sum_then_normalize") -> Tensor:
    """Return the advantages [P, G] that GRPOTrainer hands to its loss, in the type of the rewards."""
    stub = reward_stub(parts, weights, scale=scale, aggregation=aggregation)
    batch = GRPOTrainer._generate_and_score_completions(stub, [{"prompt": ""}] * parts[..., 0].numel())
    return batch["advantages"].reshape(parts.shape[:2])


def single(case: RewardCase, *, scale: str = "group") -> Outcome:
    """Return the advantages of the first part alone."""
    return Outcome(advantages(case.parts[..., :1], case.weights[:1], scale=scale))


def several(case: RewardCase, *, aggregation: str) -> Outcome:
    """Return the advantages of both parts."""
    return Outcome(advantages(case.parts, case.weights, aggregation=aggregation))


def single_in_float32(case: RewardCase) -> Outcome:
    """Return the advantages of the first part in float32, the type of the trainer's rewards."""
    return Outcome(advantages(case.parts[..., :1].float(), case.weights[:1].float()).double())


def rloo_advantages(case: RewardCase) -> Outcome:
    """Return the advantages [P, G] that RLOOTrainer hands to its loss, of the first part alone."""
    stub = reward_stub(case.parts[..., :1], case.weights[:1], scale="none", aggregation="")
    # RLOO's generation returns three things, GRPO's eight.
    stub._generate = lambda prompts: ([[1]] * len(prompts), [[1]] * len(prompts), prompts)
    batch = RLOOTrainer._generate_and_score_completions(stub, [{"prompt": ""}] * case.parts[..., 0].numel())
    return Outcome(batch["advantages"].reshape(case.parts.shape[:2]))


def action_logprobs(case: LogitsCase) -> Outcome:
    """Return ``selective_log_softmax`` of the head's logits at the case's temperature."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        return selective_log_softmax(hidden @ weight.T, case.actions, temperature=case.temperature)

    return with_gradient(compute, case.hidden, case.weight, cotangent=case.cotangent[0])


def entropies(case: LogitsCase) -> Outcome:
    """Return ``entropy_from_logits`` of the head's logits, divided by the case's temperature beforehand."""

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        return entropy_from_logits(hidden @ weight.T / case.temperature)

    return with_gradient(compute, case.hidden, case.weight, cotangent=case.cotangent[1])


ORACLES: Mapping[str, Callable[[Any], Outcome]] = {
    "grpo": partial(loss, loss_type="grpo"),
    "bnpo": partial(loss, loss_type="bnpo"),
    "dr_grpo": partial(loss, loss_type="dr_grpo"),
    "dapo": partial(loss, loss_type="dapo"),
    "dapo, part of a step": partial(loss, loss_type="dapo", num_items=constants.STEP_DENOMINATOR),
    "grpo, delta": partial(loss, loss_type="grpo", delta=constants.DELTA),
    "cispo": partial(loss, loss_type="cispo"),
    "sapo": partial(loss, loss_type="sapo"),
    "gspo": partial(loss, loss_type="grpo", level="sequence"),
    "gspo, per decision": partial(loss, loss_type="dapo", level="sequence"),
    "grpo + k3": partial(loss, loss_type="grpo", beta=constants.KL_WEIGHT),
    "grpo + ratio_k3": partial(loss, loss_type="grpo", beta=constants.KL_WEIGHT, corrected=True),
    "dapo + ratio_k3": partial(loss, loss_type="dapo", beta=constants.KL_WEIGHT, corrected=True),
    "gspo + ratio_k3": partial(loss, loss_type="grpo", level="sequence", beta=constants.KL_WEIGHT, corrected=True),
    "vespo": partial(loss, loss_type="vespo"),
    "top entropy": partial(loss, loss_type="grpo", chosen=True),
    "luspo": partial(loss, loss_type="luspo"),
    "luspo, sequence level": partial(loss, loss_type="luspo", level="sequence"),
    "joint": rloo_loss,
    "group": single,
    "group in float32": single_in_float32,
    "mean only": partial(single, scale="none"),
    "batch": partial(single, scale="batch"),
    "leave one out": rloo_advantages,
    "weighted sum": partial(several, aggregation="sum_then_normalize"),
    "per reward": partial(several, aggregation="normalize_then_sum"),
    "action log-probs": action_logprobs,
    "entropy": entropies,
}
