import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from grpo_pipeline.core.backprop.response_logprobs import response_logprobs

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


def example(t_p=2):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(5, (3, t_p), generator=generator), torch.randint(5, (3, 4), generator=generator)


def naive(model, prompts, responses, mask):
    """The log-prob of each token, from the table alone."""
    table, result = model.table.detach(), torch.zeros(responses.shape, dtype=F64)
    for b, row in enumerate(torch.cat([prompts, responses], dim=1)):
        for t, token in enumerate(responses[b]):
            until = prompts.shape[1] + t
            logits = sum((mask[b, i] * table[row[i]] for i in range(until)), torch.zeros(5, dtype=F64))
            result[b, t] = logits[token] - math.log(sum(math.exp(z) for z in logits))
    return result


class Wrapped(Causal):
    def forward(self, ids):
        return SimpleNamespace(logits=super().forward(ids))


@pytest.mark.parametrize("t_p", [1, 3])
def test_agrees_with_a_naive_loop_and_the_mask_reaches_the_model(t_p):
    model, (prompts, responses) = Causal(), example(t_p)
    mask = torch.ones(3, t_p + 4, dtype=torch.bool)
    wanted = naive(model, prompts, responses, mask)
    for kind in (Causal, Wrapped, Unmasked):
        torch.testing.assert_close(response_logprobs(kind(), prompts, responses).detach(), wanted, atol=1e-12, rtol=0)
    mask[0, 0] = False
    found = response_logprobs(model, prompts, responses, mask)
    torch.testing.assert_close(found.detach(), naive(model, prompts, responses, mask), atol=1e-12, rtol=0)
    assert found.requires_grad
    with pytest.raises(ValueError, match=r"must take attention_mask where one is given, got Unmasked without it"):
        response_logprobs(Unmasked(), prompts, responses, mask)
    with pytest.raises(ValueError, match=r"attention_mask must have shape .*, got \[3, 4\]; cover prompt and response"):
        response_logprobs(model, prompts, responses, mask[:, t_p:])


def test_the_responses_of_a_prompt_stand_side_by_side():
    prompts, responses = torch.tensor([[0, 1], [3, 4]]), torch.tensor([[2, 0], [1, 1], [4, 3], [0, 2], [3, 3], [1, 4]])
    of_response = prompts[[0, 0, 0, 1, 1, 1]]
    wanted = naive(Causal(), of_response, responses, torch.ones(6, 4, dtype=torch.bool))
    torch.testing.assert_close(response_logprobs(Causal(), prompts, responses).detach(), wanted, atol=1e-12, rtol=0)


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
