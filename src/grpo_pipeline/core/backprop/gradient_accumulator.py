"""Gradients of several micro-batches, then one optimiser step on their weighted mean."""

import math

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from grpo_pipeline.core.policy_gradient.hybrid_loss import NonFiniteLossError
from grpo_pipeline.core.training import optim
from grpo_pipeline.core.training.state import TrainState


class GradientAccumulator:
    """Collect gradients in ``.grad`` and step when told to, through ``core.training.optim``.

        gradient at step = sum_i denominator_i * grad(loss_i) / sum_i denominator_i

    With the number of units that a loss is a mean over as its denominator, this is the gradient of one large batch, however
    it was split; the total need not be known before the last micro-batch.

    Attributes:
        max_grad_norm: largest norm over all parameters of the optimiser, None for no clipping.
    """

    def __init__(
        self, modules: nn.Module, optimizer: Optimizer, *, max_grad_norm: float | None
    ) -> None:
        self.max_grad_norm = max_grad_norm
        self._state = TrainState(
            modules, optimizer, reference=None, step=0, epoch=0, generator_seed=0
        )
        self._loss_sum, self._denominator = 0.0, 0.0

    @property
    def updates(self) -> int:
        """Steps taken."""
        return self._state.step

    @property
    def is_pending(self) -> bool:
        """Whether something was added since the last step."""
        return self._denominator > 0.0

    def add(self, loss: Tensor, denominator: float = 1.0, *, retain_graph: bool = False) -> None:
        """Back-propagate ``denominator * loss``; no weight changes.

        Args:
            loss: scalar with graph.
            denominator: how many units the loss is a mean over, positive.
            retain_graph: whether the graph can be walked again.

        Raises:
            NonFiniteLossError: the weights are as before, and what was added is dropped.
            ValueError: if the loss is no scalar with a graph, or the denominator is not positive; nothing is added.
        """
        _check(loss, denominator)
        value = float(loss.detach())
        if not self.is_pending or not math.isfinite(value):
            self.drop()
        if not math.isfinite(value):
            raise NonFiniteLossError(
                f"loss must be finite, got {value} at update {self.updates}; the weights are unchanged: look at its terms, or "
                "lower the learning rate"
            )
        torch.autograd.backward(loss * denominator, retain_graph=retain_graph)
        self._loss_sum += value * float(denominator)
        self._denominator += float(denominator)

    def step(self) -> dict[str, float]:
        """Step on what was added, clipped to ``max_grad_norm``, and begin anew.

        Returns:
            ``grad_norm`` before clipping, and ``loss``, the mean weighted by the denominators.

        Raises:
            NonFiniteGradientError: the weights and the optimiser are as before, and what was added is dropped.
            ValueError: if nothing was added, or no loss depended on a parameter of the optimiser.
        """
        if not self.is_pending:
            raise ValueError(
                "a step must follow a loss, got nothing accumulated; call accumulate(loss), or update(loss)"
            )
        for parameter in (
            p for group in self._state.optimizer.param_groups for p in group["params"]
        ):
            if parameter.grad is not None:
                parameter.grad.mul_(1.0 / self._denominator)
        loss, self._loss_sum, self._denominator = self._loss_sum / self._denominator, 0.0, 0.0
        report = optim.step(self._state, max_grad_norm=self.max_grad_norm, clip="joint")
        self._state = optim.advance(self._state)
        return {"grad_norm": report["grad_norm/total"], "loss": loss}

    def drop(self) -> None:
        """Forget what was added since the last step."""
        optim.clear_gradients(self._state)
        self._loss_sum, self._denominator = 0.0, 0.0


def _check(loss: Tensor, denominator: float) -> None:
    if loss.ndim != 0 or not loss.requires_grad:
        got = f"shape {list(loss.shape)}" if loss.ndim else "one without a graph"
        raise ValueError(
            f"the loss must be a scalar that depends on the parameters, got {got}; reduce it, or find the detach"
        )
    if not 0.0 < denominator < math.inf:
        raise ValueError(
            f"denominator must be positive and finite, got {denominator}; pass the number of the loss's units"
        )
