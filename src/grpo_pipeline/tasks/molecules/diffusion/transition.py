"""Compute the noise of a component between classes: forwards, backwards, and backwards under a predicted x0.

    Q_t = alpha_t I + (1 - alpha_t) 1 m'        Q-bar_t = Q_1 ... Q_t = alpha-bar_t I + (1 - alpha-bar_t) 1 m'

An entry keeps its class or is drawn anew from the limit distribution m, which is uniform, or the marginal of the training data.
Sources: DiGress, arXiv 2209.14734; D3PM, arXiv 2107.03006 (the discrete chain).

How this differs from public versions: all is computed in logarithms and in O(K) per entry, without K x K matrices, floors under
denominators or renormalisation. A class with m = 0 is refused: a graph with that class would have probability 0 under the noise.
"""

import torch
from torch import Tensor, nn

from grpo_pipeline.core.sampling.plackett_luce import gumbel_noise
from grpo_pipeline.core.training.precision import at_least_float32
from grpo_pipeline.tasks.molecules.diffusion.noise_schedule import NoiseSchedule


class Transition(nn.Module):
    """The noise of a component with K classes; entries [B, N], times t int64 [B], one for each row.

    ``limit`` [K] is m; it is stored with the weights. The tables of the schedule are float64 and follow from the parameters.
    """

    limit: Tensor
    log_step_keep: Tensor
    log_step_change: Tensor
    log_total_keep: Tensor
    log_total_change: Tensor

    def __init__(self, limit: Tensor, schedule: NoiseSchedule) -> None:
        super().__init__()
        if limit.ndim != 1 or not bool((limit > 0).all()) or abs(float(limit.sum()) - 1) > 1e-9:
            raise ValueError(
                f"limit must be K probabilities above 0 that sum to 1, got {limit.tolist()}; see marginal_limit"
            )
        self.register_buffer("limit", limit.to(torch.float64, copy=True))
        for name, table in vars(schedule).items():
            self.register_buffer(f"log_{name}", table.log(), persistent=False)

    @property
    def classes(self) -> int:
        """K, the number of classes."""
        return len(self.limit)

    @property
    def steps(self) -> int:
        """T, the number of steps."""
        return len(self.log_step_keep) - 1

    def step_matrix(self, t: int) -> Tensor:
        """Compute Q_t [K, K]: row = class before step t, column = class after it; float64."""
        return self._matrix(self.log_step_keep[t], self.log_step_change[t])

    def total_matrix(self, t: int) -> Tensor:
        """Compute Q-bar_t [K, K]: row = class of x0, column = class of z_t; float64."""
        return self._matrix(self.log_total_keep[t], self.log_total_change[t])

    @torch.no_grad()
    def corrupt(self, classes: Tensor, t: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw z_t given x0 = ``classes`` int64 [B, N], independently for each entry, from its row of Q-bar_t."""
        is_kept = torch.rand(
            classes.shape, generator=generator, dtype=torch.float64, device=classes.device
        )
        redrawn = self.draw_limit(tuple(classes.shape), generator=generator)
        # With probability alpha-bar_t, [B, 1], the class of x0 stays; else m decides, which may draw the same class.
        return torch.where(is_kept < self.log_total_keep[t].exp()[:, None], classes, redrawn)

    @torch.no_grad()
    def draw_limit(self, shape: tuple[int, ...], *, generator: torch.Generator) -> Tensor:
        """Draw classes from m, int64 of this shape."""
        log_limit = self._log_limit(torch.float64)
        return (
            log_limit + gumbel_noise((*shape, self.classes), like=log_limit, generator=generator)
        ).argmax(dim=-1)

    def posterior(self, noisy: Tensor, clean: Tensor, t: Tensor) -> Tensor:
        """Compute log q(z_{t-1} | z_t, x0), float64 [B, N, K].

            q(z | z_t, x0) = Q_t[z, z_t] Q-bar_{t-1}[x0, z] / Q-bar_t[x0, z_t]

        Args:
            noisy: z_t, integers [B, N].
            clean: x0, integers [B, N].
            t: int64 [B], 1..T.

        Returns:
            -inf where a class cannot be: at t = 1 everywhere but at x0.
        """
        # A known x0 is a prediction with all mass on one class.
        known = torch.full(
            (*clean.shape, self.classes), -torch.inf, dtype=torch.float64, device=clean.device
        )  # [B, N, K]
        return self._mix(known.scatter(-1, clean.long().unsqueeze(-1), 0.0), noisy, t)

    def reverse(self, logits: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """Compute log p(z_{t-1} | z_t), [B, N, K]: the posterior, averaged over the predicted x0.

            p(z | z_t) = sum over x0 of softmax(logits)[x0] * q(z | z_t, x0)

        Source: DiGress; D3PM weighs every x0 with q(z_t | x0) in addition. At t = 1 it is softmax(logits) itself. Exact: a class
        that is predicted with a probability below what a float can hold still has its logarithm.

        Args:
            logits: [B, N, K], finite; half precision is computed with in float32.
            noisy: z_t, integers [B, N].
            t: int64 [B], 1..T.

        Returns:
            Normalised log-probabilities, finite, with gradient with respect to the logits.
        """
        return self._mix(at_least_float32(logits).log_softmax(dim=-1), noisy, t)

    def _mix(self, log_x0: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """Average the posterior over x0 ~ exp(log_x0) [B, N, K].

            p(z) = Q_t[z, z_t] * (keep * w_z + change * m_z * sum_x w_x),   w_x = p(x) / Q-bar_t[x, z_t]

        keep and change are those of Q-bar_{t-1}; it is the sum over x0 with Q-bar_{t-1} = keep I + change 1 m' written out.
        """
        dtype = log_x0.dtype
        log_limit = self._log_limit(dtype)
        # log w_x of every class x that x0 may be.
        weights = log_x0 - self._towards(
            noisy, self.log_total_keep[t], self.log_total_change[t], dtype
        )  # [B, N, K]
        keep, change = (
            table[t - 1].to(dtype)[:, None, None]
            for table in (self.log_total_keep, self.log_total_change)
        )  # [B, 1, 1]
        redrawn = change + log_limit + weights.logsumexp(dim=-1, keepdim=True)  # [B, N, K]
        one_step = self._towards(noisy, self.log_step_keep[t], self.log_step_change[t], dtype)
        return one_step + torch.logaddexp(keep + weights, redrawn)

    def _towards(
        self, end: Tensor, log_keep: Tensor, log_change: Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Compute log (keep I + change 1 m')[x, end] for every class x, [B, N, K]; log_keep and log_change [B]."""
        index = end.long()
        log_limit = self._log_limit(torch.float64)
        other = log_change[:, None] + log_limit[index]  # [B, N]
        same = torch.logaddexp(log_keep[:, None], other)
        is_same = torch.arange(self.classes, device=end.device) == index.unsqueeze(-1)  # [B, N, K]
        return torch.where(is_same, same.to(dtype).unsqueeze(-1), other.to(dtype).unsqueeze(-1))

    def _matrix(self, log_keep: Tensor, log_change: Tensor) -> Tensor:
        return (
            # [K, K] + [K]: every row gets m.
            log_keep.exp() * torch.eye(self.classes, dtype=torch.float64, device=self.limit.device)
            + log_change.exp() * self.limit
        )

    def _log_limit(self, dtype: torch.dtype) -> Tensor:
        return self.limit.log().to(dtype)


def uniform_limit(classes: int) -> Tensor:
    """Return m = 1 / K for every class, float64 [K]."""
    return torch.full((classes,), 1 / classes, dtype=torch.float64)


def marginal_limit(counts: Tensor) -> Tensor:
    """Compute the frequency of each class in the training data, float64 [K]; a class that never occurs has some mass, too.

        m_k = (count_k + 1) / sum over j of (count_j + 1)

    Args:
        counts: [K], number of entries of each class: atoms of each element, pairs of each bond (including "none").
    """
    mass = counts.to(torch.float64) + 1.0
    return mass / mass.sum()
