from unittest.mock import patch

import pytest
import torch

from grpo_pipeline.tasks.dialogue.language_model import scoring
from grpo_pipeline.tasks.dialogue.language_model.sampling import pack
from grpo_pipeline.tasks.dialogue.language_model.scoring import score_tokens

GENERATOR = torch.Generator().manual_seed(0)
HIDDEN = torch.randn(7, 3, generator=GENERATOR, dtype=torch.float64)
HEAD = (torch.randn(9, 3, generator=GENERATOR, dtype=torch.float64), torch.randn(9, generator=GENERATOR, dtype=torch.float64))
ACTIONS = torch.randint(9, (7,), generator=GENERATOR)
KEPT = (torch.rand(7, 9, generator=GENERATOR) < 0.5).scatter(1, ACTIONS[:, None], True)


@pytest.mark.parametrize("kept", [None, KEPT])
def test_each_row_is_scored_over_what_it_kept(kept: torch.Tensor | None) -> None:
    found = score_tokens(HIDDEN, HEAD, ACTIONS, temperature=0.7, kept=None if kept is None else pack(kept))
    for m in range(7):
        z = (HEAD[0] @ HIDDEN[m] + HEAD[1]) / 0.7
        mass = {v: float(z[v].exp()) for v in range(9) if kept is None or kept[m, v]}
        p = {v: x / sum(mass.values()) for v, x in mass.items()}
        expected = torch.tensor(p[int(ACTIONS[m])], dtype=torch.float64).log()
        torch.testing.assert_close(found.logprobs[m], expected, rtol=1e-12, atol=1e-12)
        entropy = -sum(x * float(torch.tensor(x, dtype=torch.float64).log()) for x in p.values())
        assert float(found.entropy[m]) == pytest.approx(entropy, abs=1e-12)


def test_blocks_change_neither_numbers_nor_gradients() -> None:
    results = []
    for rows in (1, 100):
        leaves = [x.clone().requires_grad_() for x in (HIDDEN, *HEAD)]
        with patch.object(scoring, "BLOCK_NUMBERS", 9 * rows):
            found = score_tokens(leaves[0], (leaves[1], leaves[2]), ACTIONS, temperature=1.3, kept=pack(KEPT))
            (found.logprobs.sum() - 2 * found.entropy.sum()).backward()
        results.append([*found, *(x.grad for x in leaves)])
    for one, two in zip(*results, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
