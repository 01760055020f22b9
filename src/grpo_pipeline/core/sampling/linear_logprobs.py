"""Compute log-probabilities and entropy over a large vocabulary block by block, without ever holding all logits.

How this differs from public versions: the logits exist as one block of rows x choices at a time, forward and backward, so the
memory depends neither on the number of rows nor on that of choices; the entropy is computed in the same pass and is as
differentiable as the log-probabilities. The backward pass computes the blocks again instead of keeping them: one more matrix
product than the plain way, paid for by passes over memory that are not made.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# A block of logits. 2**23 float32 numbers are 32 MiB, the last-level cache of a server's CPU; smaller blocks gain nothing on an
# idle machine, and on a busy one threads that wait for each other after every operation cost more than cache misses.
BLOCK_NUMBERS = 2**23
# More rows than this do not make the matrix product faster; wider blocks do.
DEFAULT_ROWS = 2048


def chunked_logprobs(
    hidden: Tensor,
    weight: Tensor,
    actions: Tensor,
    *,
    bias: Tensor | None = None,
    temperature: float = 1.0,
    chunk_rows: int | None = None,
    with_entropy: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """Return the log-probability of each action, and the entropy of the categorical it was drawn from, in nats.

        z = (hidden @ weight.T + bias) / temperature      logprob = z_a - logsumexp(z)      H = logsumexp(z) - sum_v p_v * z_v

    The running log-sum-exp over blocks is that of Milakov and Gimelshein, arXiv 1805.02867, section 3. Under autocast the
    matrix products are in its dtype; maxima, sums and gradients are added up in float32 (float64 for float64 inputs).

    Args:
        hidden: [..., D], for instance [N, T, D] or [M, D].
        weight: [V, D], the output embedding.
        actions: int64 [...], 0..V-1; for padding give any index and mask the result.
        bias: [V] or None.
        temperature: divides the logits, above 0; the same number as in the sampler.
        chunk_rows: rows of a block; None chooses. The result depends on it only by rounding.
        with_entropy: False saves its passes.

    Returns:
        Log-probabilities [...] and entropies [...] (None without entropy), float32 or float64. Both can be differentiated
        once with respect to hidden, weight and bias.

    Raises:
        ValueError: if shapes or dtypes do not fit, an action is out of range, or temperature or chunk_rows is not positive.

    Not checked: that hidden, weight and bias are finite.
    """
    _check_numbers(temperature, chunk_rows)
    _check_tensors(hidden, weight, bias, actions)
    options = _Options(
        1 / temperature, chunk_rows or DEFAULT_ROWS, with_entropy, _product_dtype(hidden)
    )
    rows = hidden.reshape(-1, hidden.shape[-1])  # [M, D]
    logprobs, entropy = _ChunkedLogprobs.apply(rows, weight, bias, actions.reshape(-1), options)  # type: ignore[no-untyped-call]
    return logprobs.reshape(actions.shape), None if entropy is None else entropy.reshape(
        actions.shape
    )


class _Options(NamedTuple):
    scale: float  # 1 / temperature
    chunk_rows: int
    with_entropy: bool
    product_dtype: torch.dtype


class _ChunkedLogprobs(torch.autograd.Function):
    """Two loops over the blocks, rows outside and choices inside; the backward pass makes the same loops again."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        actions: Tensor,
        options: _Options,
    ) -> tuple[Tensor, Tensor | None]:
        blocks = _open(hidden, weight, bias, options)
        log_z, logprobs, entropy = (blocks.buffers.new_empty(len(hidden)) for _ in range(3))  # [M]
        for rows in blocks.rows():
            running = _start(log_z[rows])
            for columns in blocks.columns():
                z = blocks.logits(rows, columns)  # [rows, choices]
                work = blocks.beside(z) if options.with_entropy else None
                running = _add_block(running, z, actions[rows] - columns.start, work)
            # logsumexp(z) = top + log(mass); H = logsumexp(z) - sum_v p_v * z_v = log(mass) - moment / mass.
            log_mass = running.mass.log()
            log_z[rows] = running.top + log_mass
            logprobs[rows] = (running.chosen - running.top) - log_mass
            entropy[rows] = log_mass - running.moment / running.mass
        ctx.set_materialize_grads(False)
        ctx.options = options
        ctx.save_for_backward(hidden, weight, bias, actions, log_z, entropy)
        return logprobs, entropy if options.with_entropy else None

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, actions, log_z, entropy = ctx.saved_tensors
        blocks = _open(hidden, weight, bias, ctx.options)
        demand = _demand(grad_logprobs, grad_entropy, entropy, ctx.options.scale)
        inputs = (hidden, weight, bias)
        totals = [
            torch.zeros_like(tensor, dtype=log_z.dtype) if is_needed else None
            for tensor, is_needed in zip(inputs, ctx.needs_input_grad[:3], strict=True)
        ]
        for rows in blocks.rows():
            for columns in blocks.columns():
                # log p_v of the block, [rows, choices].
                z = blocks.logits(rows, columns).sub_(log_z[rows, None])
                gradient = _logit_gradient(
                    z, demand.of(rows), actions[rows] - columns.start, blocks.beside(z)
                )
                _accumulate(totals, gradient, blocks, rows, columns)
        return *totals, None, None  # autograd casts each one to the dtype of its input


@dataclass(frozen=True)
class _Blocks:
    """The logits of a head, one block after the other in the same buffer.

    Attributes:
        hidden: [M, D], weight: [V, D], bias: [V] or None, in the dtype of the matrix product.
        scale: multiplies the logits.
        shape: rows and choices of a block.
        buffers: [2, rows * choices] in the dtype of the sums; the second one is for what is computed from the first.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    scale: float
    shape: tuple[int, int]
    buffers: Tensor

    def rows(self) -> Iterator[slice]:
        """Yield the slices of rows."""
        yield from _slices(len(self.hidden), self.shape[0])

    def columns(self) -> Iterator[slice]:
        """Yield the slices of choices."""
        yield from _slices(len(self.weight), self.shape[1])

    def logits(self, rows: slice, columns: slice) -> Tensor:
        """Return the block's scaled logits in the first buffer."""
        hidden, weight = self.hidden[rows], self.weight[columns]
        z = self.buffers[0, : len(hidden) * len(weight)].view(len(hidden), len(weight))
        product = z if z.dtype == weight.dtype else torch.empty_like(z, dtype=weight.dtype)
        # The product is scaled by alpha and the bias by beta: both are divided by the temperature.
        start, beta = (product, 0.0) if self.bias is None else (self.bias[columns], self.scale)
        torch.addmm(start, hidden, weight.T, beta=beta, alpha=self.scale, out=product)
        return z if product is z else z.copy_(product)

    def beside(self, z: Tensor) -> Tensor:
        """Return the second buffer in the shape of a block."""
        return self.buffers[1, : z.numel()].view_as(z)


def _open(hidden: Tensor, weight: Tensor, bias: Tensor | None, options: _Options) -> _Blocks:
    """Choose the block's shape and make room for it."""
    dtype = options.product_dtype
    rows = max(1, min(len(hidden), options.chunk_rows))
    choices = max(1, min(len(weight), BLOCK_NUMBERS // rows))
    buffers = hidden.new_empty(2, rows * choices, dtype=torch.promote_types(dtype, torch.float32))
    low_bias = None if bias is None else bias.to(dtype)
    return _Blocks(
        hidden.to(dtype), weight.to(dtype), low_bias, options.scale, (rows, choices), buffers
    )


class _Running(NamedTuple):
    """Running sums over the blocks read so far, for each row, all [rows]; d = z - top.

    The largest logit, the sum of exp(d), the sum of d * exp(d), and the action's logit once its block has come.
    """

    top: Tensor
    mass: Tensor
    moment: Tensor
    chosen: Tensor


def _start(rows: Tensor) -> _Running:
    """Return the state before the first block; its top is finite, so that no difference of tops is NaN."""
    zero = torch.zeros_like(rows)
    return _Running(torch.full_like(rows, torch.finfo(rows.dtype).min / 2), zero, zero, zero)


def _add_block(running: _Running, z: Tensor, local: Tensor, work: Tensor | None) -> _Running:
    """Take in one block of logits, which is overwritten; ``local`` is the action counted from the block's first choice.

    mass <- exp(top - top') * mass + sum exp(d')
    moment <- exp(top - top') * (moment + (top - top') * mass) + sum d' * exp(d')       d' = z - top'
    """
    is_here, index = _locate(local, z.shape[1])  # [rows], [rows, 1]
    chosen = torch.where(is_here, z.gather(1, index)[:, 0], running.chosen)  # [rows]
    top = torch.maximum(running.top, z.amax(dim=1))
    drop = running.top - top
    fade = drop.exp()
    d = z.sub_(top[:, None])  # d': [rows, choices]
    e = torch.exp(d, out=d if work is None else work)
    mass = fade * running.mass + e.sum(dim=1)
    if work is None:
        return _Running(top, mass, running.moment, chosen)
    # [rows, 1, choices] @ [rows, choices, 1] -> [rows].
    # Row by row, without room for the products.
    moment = torch.bmm(e[:, None], d[:, :, None])[:, 0, 0]
    return _Running(top, mass, fade * (running.moment + drop * running.mass) + moment, chosen)


class _Demand(NamedTuple):
    """The gradient that the loss sends to each row's results, times the scale of the logits, all [rows].

    dL/dlogprob; dL/dlogprob + dL/dH * H; dL/dH (None if the loss has no entropy).
    """

    chosen: Tensor
    constant: Tensor
    slope: Tensor | None

    def of(self, rows: slice) -> "_Demand":
        return _Demand(
            self.chosen[rows], self.constant[rows], None if self.slope is None else self.slope[rows]
        )


def _demand(
    grad_logprobs: Tensor | None, grad_entropy: Tensor | None, entropy: Tensor, scale: float
) -> _Demand:
    chosen = torch.zeros_like(entropy) if grad_logprobs is None else grad_logprobs * scale
    if grad_entropy is None:
        return _Demand(chosen, chosen, None)
    return _Demand(chosen, chosen + grad_entropy * scale * entropy, grad_entropy * scale)


def _logit_gradient(log_p: Tensor, demand: _Demand, local: Tensor, work: Tensor) -> Tensor:
    """Turn a block of log-probabilities into the gradient of the loss with respect to its logits, in place.

    dL/dz_v = dL/dl * (1[v = a] - p_v) - dL/dH * p_v * (log p_v + H)
    """
    is_here, index = _locate(local, log_p.shape[1])  # [rows], [rows, 1]
    # All but the share of v = a: -p_v * (dL/dl + dL/dH * H) - dL/dH * p_v * log p_v.
    if demand.slope is None:
        gradient = log_p.exp_().mul_(-demand.constant[:, None])
    else:
        p = torch.exp(log_p, out=work)
        gradient = torch.addcmul(
            -demand.constant[:, None], log_p, demand.slope[:, None], value=-1, out=log_p
        ).mul_(p)
    return gradient.scatter_add_(1, index, demand.chosen.masked_fill(~is_here, 0.0)[:, None])


def _accumulate(
    totals: list[Tensor | None], gradient: Tensor, blocks: _Blocks, rows: slice, columns: slice
) -> None:
    """Add a block's share to the gradients of hidden, weight and bias, where they are wanted."""
    of_hidden, of_weight, of_bias = totals
    if of_bias is not None:
        of_bias[columns] += gradient.sum(dim=0)
    low = gradient.to(blocks.weight.dtype)
    if of_hidden is not None:
        _add_product(of_hidden[rows], low, blocks.weight[columns])
    if of_weight is not None:
        _add_product(of_weight[columns], low.T, blocks.hidden[rows])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left @ right to total in the dtype of total."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total += left @ right


def _locate(local: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return which rows have their action in a block [rows], and an index into it for all of them [rows, 1]."""
    return (local >= 0) & (local < width), local.clamp(0, width - 1)[:, None]


def _slices(count: int, width: int) -> Iterator[slice]:
    return (slice(start, min(start + width, count)) for start in range(0, count, width))


def _product_dtype(hidden: Tensor) -> torch.dtype:
    """Return the dtype of the matrix product: autocast's where it is on, but never below float64 for float64."""
    if torch.is_autocast_enabled(hidden.device.type) and hidden.dtype != torch.float64:
        return torch.get_autocast_dtype(hidden.device.type)
    return hidden.dtype


def _check_numbers(temperature: float, chunk_rows: int | None) -> None:
    if not temperature > 0:
        raise ValueError(
            f"temperature must be above 0, got {temperature}; use the arg-max for greedy choices"
        )
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(
            f"chunk_rows must be at least 1, got {chunk_rows}; leave it out to have it chosen"
        )


def _check_tensors(hidden: Tensor, weight: Tensor, bias: Tensor | None, actions: Tensor) -> None:
    shapes = f"hidden {tuple(hidden.shape)}, weight {tuple(weight.shape)}, actions {tuple(actions.shape)}"
    if (
        weight.dim() != 2
        or hidden.shape[-1:] != weight.shape[1:]
        or hidden.shape[:-1] != actions.shape
    ):
        raise ValueError(
            f"shapes must be hidden [..., D], weight [V, D], actions [...], got {shapes}; align them"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(
            f"bias must have the shape {tuple(weight.shape[:1])}, got {tuple(bias.shape)}; give one per choice"
        )
    dtypes = {tensor.dtype for tensor in (hidden, weight, bias) if tensor is not None}
    if len(dtypes) > 1 and not torch.is_autocast_enabled(hidden.device.type):
        raise ValueError(
            f"hidden, weight and bias must share one dtype, got {sorted(map(str, dtypes))}; cast them or use autocast"
        )
    if actions.numel() and not bool(((actions >= 0) & (actions < len(weight))).all()):
        low, high = int(actions.min()), int(actions.max())
        raise ValueError(
            f"actions must be between 0 and {len(weight) - 1}, got {low} to {high}; give padding any index and mask the result"
        )
