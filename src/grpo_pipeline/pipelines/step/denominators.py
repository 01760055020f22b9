"""Say by which count a term of the loss is divided: its own count in a whole batch, the count of the step in a piece of one.

A loss that each micro-batch divided by its own count would weigh a decision in a short micro-batch more than one in a long one.
"""

import torch
from torch import Tensor

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.policy_gradient.reductions import mean_over
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.tasks.base import Task


def denominator_of(experience: Experience, term: str) -> Tensor | None:
    """Return what this term is divided by in a micro-batch; None where the batch is whole."""
    return None if experience.share is None else experience.share.denominators[term]


def prompts_of(algorithm: AlgorithmParams, task: Task, experience: Experience) -> Tensor:
    """Count the prompts of a piece of a batch; float64 scalar."""
    is_valid = experience.rollouts.is_valid
    return torch.tensor(float(len(is_valid)), dtype=torch.float64, device=is_valid.device)


def mean_over_prompts(values: Tensor, experience: Experience, term: str) -> Tensor:
    """Return the mean of one value per prompt, [P] -> scalar; in a piece of a batch its share of that."""
    counted = denominator_of(experience, term)
    return values.mean() if counted is None else mean_over(values, denominator=counted)
