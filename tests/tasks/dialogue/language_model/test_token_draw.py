import torch

from grpo_pipeline.tasks.dialogue.language_model.sampling import draw_tokens

BELOW_ONE = 1 - 2**-53


def test_a_token_is_drawn_where_the_mass_exceeds_the_number() -> None:
    """Masses 0.2, 0.5, 0.3 end at 0.2, 0.7, 1."""
    log_probs = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log().expand(7, 3)
    uniform = torch.tensor([0.0, 0.19, 0.21, 0.69, 0.71, 0.99, BELOW_ONE], dtype=torch.float64)
    assert draw_tokens(log_probs, uniform).tolist() == [0, 0, 1, 1, 2, 2, 2]


def test_an_excluded_token_is_never_drawn() -> None:
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(500, 40, generator=generator)
    is_out = torch.rand(500, 40, generator=generator) < 0.6
    is_out[:, 7] = False
    log_probs = log_probs.masked_fill(is_out, -float("inf")).log_softmax(dim=-1)
    for u in (0.0, 0.3, BELOW_ONE):
        tokens = draw_tokens(log_probs, torch.full((500,), u, dtype=torch.float64))
        assert not is_out.gather(1, tokens[:, None]).any()


def test_a_rare_token_is_drawn_as_often_as_it_should_be() -> None:
    """In float32, 1 - 1e-9 is 1, and the last token would have no interval."""
    log_probs = torch.tensor([[0.0, -20.7232658]]).log_softmax(dim=-1)  # 1e-9
    uniform = torch.tensor([1 - 2e-9, 1 - 0.5e-9], dtype=torch.float64)
    assert draw_tokens(log_probs.expand(2, 2), uniform).tolist() == [0, 1]
