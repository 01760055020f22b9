import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grpo_pipeline.core.backprop.terms import response_logprobs

F64 = torch.float64


class Causal(nn.Module):
    """Logits at a position depend on every token up to it, and on the mask where one is given."""

    def __init__(self, v=5, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.table = nn.Parameter(torch.randn(v, v, dtype=F64, generator=generator))

    def forward(self, ids, attention_mask=None):
        seen = self.table[ids]
        return (seen if attention_mask is None else seen * attention_mask[..., None]).cumsum(dim=1)


class Unmasked(Causal):
    def forward(self, ids):
        return super().forward(ids)


def example(b=3, t_p=2, t_r=4, v=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(v, (b, t_p), generator=generator), torch.randint(v, (b, t_r), generator=generator)


def naive(model, prompts, responses, b, t, mask=None):
    """The log-prob of one token, from the table alone."""
    tokens = [*prompts[b].tolist(), *responses[b].tolist()]
    until = len(prompts[b]) + t
    weights = [1.0] * until if mask is None else mask[b].tolist()
    table = model.table.detach().tolist()
    logits = [sum(weights[i] * table[tokens[i]][v] for i in range(until)) for v in range(len(table))]
    return logits[tokens[until]] - math.log(sum(math.exp(z) for z in logits))


@pytest.mark.parametrize("t_p", [1, 3])
def test_agrees_with_a_naive_loop(t_p):
    model, (prompts, responses) = Causal(), example(t_p=t_p)
    found = response_logprobs(model, prompts, responses)
    assert found.shape == responses.shape
    for b in range(3):
        for t in range(4):
            assert float(found[b, t].detach()) == pytest.approx(naive(model, prompts, responses, b, t), abs=1e-12)


def test_the_mask_reaches_the_model():
    model, (prompts, responses) = Causal(), example()
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[0, 0] = False
    found = response_logprobs(model, prompts, responses, mask)
    assert float(found[0, 2].detach()) == pytest.approx(naive(model, prompts, responses, 0, 2, mask), abs=1e-12)
    assert not torch.allclose(found[0], response_logprobs(model, prompts, responses)[0])
    with pytest.raises(ValueError, match=r"must take attention_mask where one is given, got Unmasked without it"):
        response_logprobs(Unmasked(), prompts, responses, mask)
    with pytest.raises(ValueError, match=r"attention_mask must have shape \[3, 6\], got \[3, 4\]; cover prompt and response"):
        response_logprobs(model, prompts, responses, mask[:, 2:])


def test_reads_the_attribute_logits():
    class Wrapped(Causal):
        def forward(self, ids):
            return SimpleNamespace(logits=super().forward(ids))

    prompts, responses = example()
    assert torch.equal(response_logprobs(Wrapped(), prompts, responses), response_logprobs(Causal(), prompts, responses))


@pytest.mark.parametrize(
    ("prompts", "responses"), [((3, 0), (3, 2)), ((3, 2), (3, 0)), ((2, 2), (3, 2)), ((3,), (3, 2)), ((3, 2), (3,))]
)
def test_refuses_shapes_that_do_not_fit(prompts, responses):
    with pytest.raises(ValueError, match=r"prompts and responses must have shapes \[B, T_p\] and \[B, T_r\], got"):
        response_logprobs(Causal(), torch.zeros(prompts, dtype=torch.long), torch.zeros(responses, dtype=torch.long))


@pytest.mark.parametrize(("output", "got"), [(None, "NoneType"), (torch.zeros(3, 5), r"\[3, 5\]"), ("text", "str")])
def test_refuses_a_model_without_logits(output, got):
    class Wrong(nn.Module):
        def forward(self, ids):
            return output

    with pytest.raises(ValueError, match=rf"the model must return logits \[3, 6, 'V'\], got {got}"):
        response_logprobs(Wrong(), *example())
