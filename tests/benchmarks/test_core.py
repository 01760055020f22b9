"""The benchmark of core/ measures what it says: the loops it compares with give the same numbers, and every row is printed."""

import json

import pytest
import torch
from benchmark_scripts import load_benchmark

from grpo_pipeline.core.objective.surrogates.clipped import Dapo
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.returns import generalized_advantages
from grpo_pipeline.core.sampling.plackett_luce import plackett_luce_logprobs

bench = load_benchmark("core")


def test_the_loop_over_time_is_gae() -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = (torch.randn(3, n, generator=generator, dtype=torch.float64) for n in (9, 10))
    dones = torch.rand(3, 9, generator=generator) < 0.3
    ours = generalized_advantages(rewards, values, gamma=bench.GAMMA, gae_lambda=bench.GAE_LAMBDA, dones=dones)
    for found, expected in zip(bench.loop_gae(rewards, values, dones), ours, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_the_loop_over_rows_is_the_dapo_loss() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, noise = (torch.randn(2, 3, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    advantages = torch.randn(2, 3, generator=generator, dtype=torch.float64)
    is_valid = torch.rand(2, 3, 4, generator=generator) < 0.7
    expected = policy_loss(
        logprobs, logprobs + noise, advantages, is_valid,
        Dapo(clip_low=bench.CLIP_LOW, clip_high=bench.CLIP_HIGH),
    )  # fmt: skip
    found = bench.loop_loss(logprobs, logprobs + noise, advantages, is_valid)
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-6, atol=1e-6)


def test_the_loop_over_points_draws_without_replacement_and_scores_what_it_draws() -> None:
    """All 3 cells are drawn: each of the 6 orders has its own score, and the loop's is one of them."""
    logits = torch.tensor([[0.0, 1.0, 2.5]])
    orders = torch.tensor([[[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]]])
    possible = plackett_luce_logprobs(logits, orders, is_allowed=torch.ones(1, 3, dtype=torch.bool)).sum(-1)
    found = [float(bench.loop_points(logits, 3, 1, torch.Generator().manual_seed(seed))) for seed in range(20)]
    assert all(bool(((possible - score).abs() < 1e-5).any()) for score in found)
    assert len({round(score, 3) for score in found}) > 1


def test_every_row_of_the_report_is_measured_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--smoke", "--repeats", "1", "--threads", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert min(found["milliseconds"].values()) > 0
    loop = found["milliseconds"]["GAE T=32 loop"] / found["milliseconds"]["GAE T=32 ours"]
    assert next(f["median"] for f in found["figures"] if f["name"] == "GAE T=32: loop / ours") == pytest.approx(loop)
    text = bench.format_report(found)
    assert all(name in text for name in [*found["milliseconds"], *found["skipped"], *(f["name"] for f in found["figures"])])
