"""Ours: all graphs at once, the noise in logarithms, the steps of an update in chunks."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.chunked_backward import backward_by_chunks
from grpo_pipeline.tasks.molecules.diffusion.step_scores import StepScores, score_steps
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from molecule_contenders.plain_loop import loss_of
from molecule_contenders.workload import Workload


class TaskLoop:
    """Draws and scores the graphs of a workload with the functions of the task."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.policy = workload.policy

    def sample(self) -> Tensor:
        """Draw trajectories; return the log-probabilities of their steps, [graphs, T]."""
        work = self.workload
        drawn = sample_trajectories(
            self.policy,
            work.prompts,
            1,
            params=work.params,
            temperature=1.0,
            generator=work.generator(),
        )
        return drawn.logprobs.squeeze(1)

    def update(self) -> Tensor:
        """Add the gradient of the loss: any loss, each chunk of steps computed again by the backward pass."""
        work = self.workload
        scores = score_steps(self.policy, work.rollouts, params=work.params, temperature=1.0)
        logprobs = scores.logprobs.squeeze(1)
        loss_of(logprobs, work.advantages).backward()
        return logprobs.detach()

    def update_by_chunks(self) -> Tensor:
        """Add the gradient of the loss, a sum over steps, one backward after each chunk."""
        work, found = self.workload, []

        def share(scores: StepScores, part: Trajectories) -> Tensor:
            logprobs = scores.logprobs.squeeze(1)
            found.append(logprobs.detach())
            return loss_of(logprobs, work.advantages) * (logprobs.shape[-1] / work.steps)

        backward_by_chunks(self.policy, work.rollouts, share, params=work.params, temperature=1.0)
        return torch.cat(found, dim=-1)
