import math

import pytest
import torch

from grpo_pipeline.core.policy_gradient.entropy import AdaptiveEntropy, maximal_entropy

RULE = AdaptiveEntropy(target=2.0, learning_rate=0.5, minimum=0.01, maximum=0.4)
SHARE = AdaptiveEntropy(target=0.5, learning_rate=0.5, minimum=0.0, maximum=1.0, unit="share")


@pytest.mark.parametrize(
    ("coefficient", "entropy", "want"),
    [
        (0.1, 1.6, 0.3),  # 0.1 + 0.5 * (2.0 - 1.6)
        (0.1, 2.1, 0.05),  # 0.1 + 0.5 * (2.0 - 2.1)
        (0.1, 2.0, 0.1),  # on target: nothing moves
        (0.1, 0.0, 0.4),  # 0.1 + 1.0, held at the maximum
        (0.1, 3.0, 0.01),  # 0.1 - 0.5, held at the minimum
    ],
)
def test_golden_steps_in_nats(coefficient, entropy, want):
    assert RULE.step(coefficient, entropy) == pytest.approx(want, abs=1e-15)


def test_golden_step_as_a_share():
    # H / H_max = log 2 / log 16 = 1/4: 0.1 + 0.5 * (0.5 - 0.25)
    assert SHARE.step(0.1, math.log(2), maximal_entropy=math.log(16)) == pytest.approx(0.225, abs=1e-15)


def test_maximal_entropy_is_the_log_of_the_allowed_choices():
    is_allowed = torch.tensor([[True, True, True, True], [True, False, False, True], [False, True, False, False]])
    torch.testing.assert_close(maximal_entropy(is_allowed), torch.tensor([4.0, 2.0, 1.0]).double().log(), atol=0, rtol=0)


def rule(**change):
    return AdaptiveEntropy(**{"target": 1.0, "learning_rate": 0.1, "minimum": 0.0, "maximum": 1.0} | change)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        # A clamp would hide it.
        *((lambda bad=bad: RULE.step(0.1, bad), "must be finite") for bad in (math.nan, math.inf, -math.inf)),
        *((lambda bad=bad: RULE.step(bad, 1.0), "must be finite") for bad in (math.nan, math.inf, -math.inf)),
        *(
            (lambda bad=bad: SHARE.step(0.1, 1.0, maximal_entropy=bad), "maximal_entropy must be positive for unit = share, got")
            for bad in (None, 0.0, -1.0, math.nan, math.inf)
        ),
        (lambda: rule(target=0.0), r"target must be above 0 and at most inf \(nats\), got 0.0"),
        (lambda: rule(target=math.inf), "target must be above 0"),
        (lambda: rule(target=1.5, unit="share"), r"target must be above 0 and at most 1.0 \(share\), got 1.5"),
        (lambda: rule(unit="bits"), "unit must be one of nats, share, got 'bits'"),
        (lambda: rule(learning_rate=0.0), "learning_rate must be positive and finite, got 0.0"),
        (lambda: rule(minimum=-0.1), "0 <= minimum < maximum must hold, got -0.1 and 1.0"),
        (lambda: rule(minimum=1.0), "0 <= minimum < maximum must hold, got 1.0 and 1.0"),
    ],
)
def test_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()
