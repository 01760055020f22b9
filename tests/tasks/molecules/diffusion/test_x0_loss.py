import math

import pytest
import torch
from tiny_graphs import CLASSES, generator, prompts, random_entries

from grpo_pipeline.tasks.molecules.diffusion.params import X0LossParams
from grpo_pipeline.tasks.molecules.diffusion.x0_loss import x0_counts, x0_loss

WEIGHTS = X0LossParams(atoms=1.0, charges=0.5, bonds=5.0)


@pytest.mark.parametrize("sizes", [[4, 2, 1], [2], [1]], ids=str)
def test_is_the_naive_sum_over_nodes_and_pairs(sizes: list[int]) -> None:
    """Also where there is one pair, or none."""
    wanted = prompts(sizes, 4)
    clean, total = random_entries(wanted), 0.0
    logits = wanted.masks.each(lambda m, k: torch.randn(*m.shape, k, dtype=torch.float64, generator=generator()), CLASSES)
    for weight, z, entries, mask in zip((1.0, 0.5, 5.0), logits, clean, wanted.masks, strict=True):
        places = mask.nonzero().tolist()
        nll = [math.log(sum(z[i, j].exp().tolist())) - float(z[i, j, entries[i, j]]) for i, j in places]
        total += weight * sum(nll) / max(1, len(places))
    assert float(x0_loss(logits, clean, wanted.masks, WEIGHTS, counts=x0_counts(wanted))) == pytest.approx(total, rel=1e-13)


def test_padding_gets_no_gradient_even_where_its_logits_are_infinite() -> None:
    wanted = prompts([2, 1], 3)
    logits = wanted.masks.each(lambda m, k: torch.zeros(*m.shape, k, dtype=torch.float64), CLASSES)
    logits = logits.each(lambda z, m: z.masked_fill(~m.unsqueeze(-1), 1e300).requires_grad_(), wanted.masks)
    x0_loss(logits, random_entries(wanted), wanted.masks, WEIGHTS, counts=x0_counts(wanted)).backward()
    assert all(torch.equal(z.grad.any(-1), mask) for z, mask in zip(logits, wanted.masks, strict=True))
    with pytest.raises(ValueError, match="at least one weight of the x0 loss must be above 0"):
        X0LossParams(atoms=0.0, charges=0.0, bonds=0.0)
