"""Are the contenders doing the same work? The gradient that each of them computes from the same replies of our policy."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dialogue_contenders.plain_loop import PlainLoop
from dialogue_contenders.turns import OURS, PLAIN, TRL
from dialogue_contenders.with_pipeline import PipelineStep
from dialogue_contenders.with_trl import TrlRun
from dialogue_contenders.workload import Workload
from grpo_pipeline.pipelines.step import recipe, sampling
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING, fold

# How far reference and old policy are from the trained weights: at the start both ratios are 1, and the KL has no gradient.
SHIFT = 0.003

Named = dict[str, Tensor]


def gradients(workload: Workload, folder: str, *, with_trl: bool) -> dict[str, Named]:
    """Return the gradient of every weight, by contender."""
    ours = PipelineStep(workload, folder)
    experience = draw(ours)
    shift(ours.state.policy.model)
    plain = PlainLoop(workload, folder)
    plain.model.load_state_dict(ours.state.policy.model.state_dict())
    found = {OURS: of_pipeline(ours, experience), PLAIN: of_plain_loop(plain, experience)}
    return found | ({TRL: of_trl(workload, folder, ours, experience)} if with_trl else {})


def distances(found: Mapping[str, Named]) -> dict[str, float]:
    """Return |gradient - ours| / |ours| over all weights together, by contender."""
    ours = found[OURS]
    size = torch.cat([ours[name].flatten() for name in ours]).norm()
    return {
        other: float(
            torch.cat([(grads[name] - ours[name]).flatten() for name in ours]).norm() / size
        )
        for other, grads in found.items()
        if other != OURS
    }


def draw(ours: PipelineStep) -> Experience:
    """Collect one batch of experience, as the step does."""
    task, state, training, algorithm = ours.task, ours.state, ours.training, ours.algorithm
    given = {"task": task, ALGORITHM: algorithm, TRAINING: training, "state": state}
    table = recipe.collect(Parts.of(algorithm)).nodes
    experience: Experience = fold(table, given | {"batch": ours.batch})["experience"]
    return experience


@torch.no_grad()
def shift(model: torch.nn.Module) -> None:
    """Move every weight a little, always by the same amounts."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(SHIFT * torch.randn(parameter.shape, generator=generator))


def of_pipeline(ours: PipelineStep, experience: Experience) -> Named:
    """Return the gradient of our update, after the weights have moved from those of the draw."""
    state, task, algorithm = ours.state, ours.task, ours.algorithm
    context = sampling.encode_batch(task, state, ours.batch)
    given = {"task": task, ALGORITHM: algorithm, TRAINING: ours.training, "state": state}
    moved = {"experience": replace(experience, context=context), "update_epoch": 0}
    fold(recipe.learn(Parts.of(algorithm)).nodes, given | moved)
    return _gradients(state.policy.model)


def of_plain_loop(plain: PlainLoop, experience: Experience) -> Named:
    """Return the gradient of the plain loop's loss."""
    replies = experience.rollouts.actions.flatten(0, 1)
    prompts = plain.workload.ids.repeat_interleave(plain.workload.group_size, dim=0)
    old, reference, advantages = _tables(experience)
    plain.loss(prompts, replies, old, reference, advantages).backward()
    return _gradients(plain.model)


def of_trl(workload: Workload, folder: str, ours: PipelineStep, experience: Experience) -> Named:
    """Return the gradient of TRL's loss, of a trainer that has not begun to train."""
    trainer = TrlRun(workload, folder, steps=1).trainer
    trainer.model.load_state_dict(ours.state.policy.model.state_dict())
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    prompts = workload.ids.repeat_interleave(workload.group_size, dim=0)
    replies = experience.rollouts.actions.flatten(0, 1)
    old, reference, advantages = _tables(experience)
    inputs = {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": replies,
        "completion_mask": torch.ones_like(replies),
        "advantages": advantages,
        "old_per_token_logps": old,
        "ref_per_token_logps": reference,
    }
    trainer.compute_loss(trainer.model, inputs).backward()
    return _gradients(trainer.model)


def _tables(experience: Experience) -> tuple[Tensor, Tensor, Tensor]:
    """Return old and reference log-probabilities [N, L] and advantages [N]."""
    reference = experience.reference.logprobs
    assert reference is not None  # the KL is paid
    advantages = experience.advantages.values.flatten().float()
    return experience.rollouts.logprobs.flatten(0, 1), reference.flatten(0, 1), advantages


def _gradients(model: torch.nn.Module) -> Named:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
