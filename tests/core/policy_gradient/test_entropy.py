import math

import pytest
import torch
from refusals import refuses

from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy, maximal_entropy

NATS = {"target": 2.0, "learning_rate": 0.5, "minimum": 0.01, "maximum": 0.4}
SHARE = {"target": 0.5, "learning_rate": 0.5, "minimum": 0.0, "maximum": 1.0, "unit": "share"}


@pytest.mark.parametrize(
    ("rule", "entropy", "maximal", "want"),
    [
        (NATS, 1.6, None, 0.3),  # 0.1 + 0.5 * (2.0 - 1.6)
        (NATS, 2.1, None, 0.05),  # 0.1 + 0.5 * (2.0 - 2.1)
        (NATS, 0.0, None, 0.4),  # 0.1 + 1.0, held at the maximum
        (NATS, 3.0, None, 0.01),  # 0.1 - 0.5, held at the minimum
        (SHARE, math.log(2), math.log(16), 0.225),  # H / H_max = log 2 / log 16 = 1/4: 0.1 + 0.5 * (0.5 - 0.25)
        (SHARE | {"target": 1.0}, math.log(2), math.log(16), 0.475),  # the whole range: 0.1 + 0.5 * (1 - 0.25)
    ],
)
def test_golden_steps(rule, entropy, maximal, want):
    assert AdaptiveEntropy(**rule).step(0.1, entropy, maximal_entropy=maximal) == pytest.approx(want, abs=1e-15)


def test_a_coefficient_of_zero_rises_again():
    assert AdaptiveEntropy(**NATS).step(0.0, 1.6) == pytest.approx(0.2, abs=1e-15)  # 0.5 * (2.0 - 1.6)


def test_maximal_entropy_is_the_log_of_the_allowed_choices():
    is_allowed = torch.tensor([[True, True, True, True], [True, False, False, True], [False, True, False, False]])
    torch.testing.assert_close(maximal_entropy(is_allowed), torch.tensor([4.0, 2.0, 1.0]).double().log(), atol=0, rtol=0)


BAD = (math.nan, math.inf, -math.inf)


def step(arguments):
    rule, *numbers = arguments
    return AdaptiveEntropy(**rule).step(*numbers[:2], maximal_entropy=(*numbers[2:], None)[0])


test_refuses = refuses(
    *(((NATS, *(0.1, bad)), "must be finite") for bad in BAD),  # a clamp would hide it
    *(((NATS, *(bad, 1.0)), "must be finite") for bad in BAD),
    *(((SHARE, *(0.1, 1.0, bad)), "maximal_entropy must be positive for unit = share, got") for bad in (None, 0.0, -1.0, *BAD)),
    ((NATS | {"target": 0.0},), r"target must be above 0 and at most inf \(nats\), got 0.0"),
    ((NATS | {"target": math.inf},), "target must be above 0"),
    ((SHARE | {"target": 1.5},), r"target must be above 0 and at most 1.0 \(share\), got 1.5"),
    ((NATS | {"unit": "bits"},), "unit must be one of nats, share, got 'bits'"),
    ((NATS | {"learning_rate": 0.0},), "learning_rate must be positive and finite, got 0.0"),
    ((NATS | {"minimum": -0.1},), "0 <= minimum < maximum must hold, got -0.1 and 0.4"),
    ((NATS | {"minimum": 0.4},), "0 <= minimum < maximum must hold, got 0.4 and 0.4"),
    by=step,
)
