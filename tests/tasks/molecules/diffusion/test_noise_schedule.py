from decimal import Decimal, getcontext

import pytest
import torch

from grpo_pipeline.tasks.molecules.diffusion.noise import cosine_schedule


def cosine(x: Decimal) -> Decimal:
    """Return cos(x) by its series, to 50 digits."""
    total, term = Decimal(0), Decimal(1)
    for k in range(1, 80):
        total += term
        term = -term * x * x / ((2 * k - 1) * (2 * k))
    return total


PI = Decimal("3.14159265358979323846264338327950288419716939937511")


def decimal_total_change(t: int, steps: int, exponent: int) -> Decimal:
    """Return 1 - alpha-bar_t from its definition."""
    getcontext().prec = 50
    s = Decimal("0.008")
    angles = [PI / 2 * ((Decimal(x) / steps) ** exponent + s) / (1 + s) for x in (t, 0)]
    return 1 - (cosine(angles[0]) / cosine(angles[1])) ** 2


@pytest.mark.parametrize(("steps", "exponent"), [(50, 1), (500, 2), (1000, 3)])
def test_changes_keep_their_digits_in_the_first_steps(steps: int, exponent: int) -> None:
    schedule = cosine_schedule(steps, exponent)
    for t in (1, 2, steps // 2):
        wanted = float(decimal_total_change(t, steps, exponent))
        assert float(schedule.total_change[t]) == pytest.approx(wanted, rel=1e-12)
    assert float(schedule.step_change[1]) == pytest.approx(float(decimal_total_change(1, steps, exponent)), rel=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 50])
def test_steps_multiply_to_the_total(steps: int) -> None:
    schedule = cosine_schedule(steps, 1.5)
    assert torch.allclose(schedule.step_keep.cumprod(0), schedule.total_keep, rtol=1e-12, atol=1e-15)
    assert torch.allclose(schedule.step_keep + schedule.step_change, torch.ones(steps + 1, dtype=torch.float64), atol=1e-15)
    assert torch.allclose(schedule.total_keep + schedule.total_change, torch.ones(steps + 1, dtype=torch.float64), atol=1e-15)


def test_nothing_is_noised_at_0_and_nothing_is_left_at_the_end() -> None:
    schedule = cosine_schedule(20, 1.0)
    assert (float(schedule.total_keep[0]), float(schedule.total_change[0])) == (1.0, 0.0)
    assert (float(schedule.total_keep[-1]), float(schedule.total_change[-1])) == (0.0, 1.0)
    assert bool((schedule.total_keep.diff() < 0).all())


def test_a_larger_exponent_keeps_longer() -> None:
    early, late = cosine_schedule(20, 1.0), cosine_schedule(20, 2.5)
    assert bool((late.total_keep[1:-1] > early.total_keep[1:-1]).all())


@pytest.mark.parametrize(("steps", "exponent", "name"), [(0, 1.0, "steps"), (5, 0.0, "exponent"), (5, float("inf"), "exponent")])
def test_what_is_no_schedule_is_refused(steps: int, exponent: float, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must be"):
        cosine_schedule(steps, exponent)
