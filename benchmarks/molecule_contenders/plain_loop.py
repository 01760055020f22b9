"""The plain way: one graph after the other, one step after the other, dense matrices of the noise.

The weights are those of the policy that it is compared with. What a class becomes is read off K x K matrices by Bayes' rule,
as the formulas of discrete diffusion are written; the update keeps the graph of computation of a whole trajectory.
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.molecules.diffusion.transition import Transition
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import make_prompts
from molecule_contenders.workload import Workload


class PlainLoop:
    """Draws and scores the first graphs of a workload."""

    def __init__(self, workload: Workload) -> None:
        """Build the matrices of all steps, [T + 1, K, K] float64."""
        self.workload = workload
        self.policy = workload.policy
        self.matrices = self.policy.noise.transitions.each(_matrices)
        self.alone = make_prompts(torch.tensor([workload.nodes]), workload.nodes)

    @torch.no_grad()
    def sample(self) -> Tensor:
        """Draw trajectories, every graph kept; return the log-probabilities of their steps, [graphs, T]."""
        source = self.workload.generator()
        return torch.stack([self._draw(source) for _ in range(self.workload.plain_graphs)])

    def update(self) -> Tensor:
        """Add the gradient of the loss, one backward for each trajectory; return the log-probabilities, [graphs, T]."""
        found = []
        for row in range(self.workload.plain_graphs):
            logprobs = self.score(row)
            loss_of(logprobs, self.workload.advantages[row]).backward()
            found.append(logprobs.detach())
        return torch.stack(found)

    def score(self, row: int) -> Tensor:
        """Return the log-probabilities of the steps T..1 of one stored trajectory, [T]."""
        rollouts = self.workload.rollouts
        parts = Components(rollouts.atoms, rollouts.charges, rollouts.bonds)
        steps = []
        for t in range(self.workload.steps, 0, -1):
            before, after = (
                parts.each(lambda part, s=s: part[row, 0, s].long()) for s in (t, t - 1)
            )
            log_probs = self.log_probs(before, t)
            steps.append(_log_probability(log_probs, after))
        return torch.stack(steps)

    def log_probs(self, entries: Components[Tensor], t: int) -> Components[Tensor]:
        """Return log p(z_{t-1} | z_t) of one graph, [N, K] each.

        p(z | z_t) = sum over x0 of softmax(logits)[x0] * Q_t[z, z_t] * Q-bar_{t-1}[x0, z] / Q-bar_t[x0, z_t]
        """
        logits = self.policy.denoiser(
            entries.each(lambda part: part[None]), self.alone, self._time(t)
        )

        def step(scores: Tensor, noisy: Tensor, matrices: tuple[Tensor, Tensor]) -> Tensor:
            one, total = matrices
            posterior = one[t].T[noisy].unsqueeze(1) * total[t - 1] / total[t].T[noisy].unsqueeze(2)
            p = torch.einsum("nx,nxz->nz", scores[0].double().softmax(dim=-1), posterior)
            return p.log()

        return logits.each(step, entries, self.matrices)

    def _draw(self, source: torch.Generator) -> Tensor:
        states = [
            self.policy.noise.draw_start(self.alone, generator=source).each(lambda part: part[0])
        ]
        steps = []
        for t in range(self.workload.steps, 0, -1):
            log_probs = self.log_probs(states[-1], t)
            states.append(log_probs.each(lambda scores: _draw_classes(scores, source)))
            steps.append(_log_probability(log_probs, states[-1]))
        return torch.stack(steps)

    def _time(self, t: int) -> Tensor:
        return torch.tensor([t / self.workload.steps])


def loss_of(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return the loss of an on-policy update, - A * log p, the mean over steps; summed over graphs."""
    return -(advantages.unsqueeze(-1) * logprobs).mean(dim=-1).sum()


def _matrices(transition: Transition) -> tuple[Tensor, Tensor]:
    times = range(transition.steps + 1)
    return torch.stack([transition.step_matrix(t) for t in times]), torch.stack(
        [transition.total_matrix(t) for t in times]
    )


def _draw_classes(log_probs: Tensor, source: torch.Generator) -> Tensor:
    return torch.multinomial(log_probs.exp(), 1, generator=source).squeeze(-1)


def _log_probability(log_probs: Components[Tensor], drawn: Components[Tensor]) -> Tensor:
    """Return the sum over all entries of one graph."""
    picked = log_probs.each(
        lambda scores, classes: scores.gather(-1, classes[:, None]).sum(), drawn
    )
    return picked.atoms + picked.charges + picked.bonds
