import math
from functools import partial

import pytest
from refusals import refuses

from grpo_pipeline.core.policy_gradient.algorithms import LossOptions, check_combination, with_clip

GOOD = {"algorithm": "grpo", "ratio_level": "decision", "reduction": "per_sequence"} | dict.fromkeys(("delta", "dual_clip"))


test_refuses_with_the_reason = refuses(
    ({"algorithm": "ppo2"}, "algorithm must be one of reinforce, ppo, grpo, .* got 'ppo2'"),
    ({"ratio_level": "row"}, "ratio_level must be one of decision, joint, sequence, got 'row'"),
    ({"reduction": "mean"}, "reduction must be one of per_sequence, .* got 'mean'"),
    ({"algorithm": "gspo"}, "ratio_level must be sequence for algorithm gspo, got decision"),
    ({"ratio_level": "sequence"}, "must be decision or joint for algorithm grpo, got sequence"),
    ({"algorithm": "sapo", "ratio_level": "sequence"}, "must be decision or joint for algorithm sapo"),
    ({"algorithm": "reinforce"}, "update_epochs must be 1 for algorithm reinforce, got 2"),
    ({"algorithm": "dr_grpo"}, "reduction must be constant for algorithm dr_grpo, got per_sequence"),
    ({"algorithm": "dapo"}, "reduction must be per_decision for algorithm dapo"),
    ({"algorithm": "bnpo", "reduction": "per_decision"}, "must be per_decision_local for algorithm bnpo"),
    ({"algorithm": "reinforce", "update_epochs": 1, "delta": 2.0}, "absent for algorithm reinforce, .*no ratio to bound"),
    ({"algorithm": "cispo", "delta": 2.0}, "absent for algorithm cispo, .*capped by ratio_cap"),
    ({"algorithm": "sapo", "dual_clip": 2.0}, "absent for algorithm sapo, .*sigmoid"),
    ({"delta": 2.0, "dual_clip": 3.0}, "at most one of delta and dual_clip"),
    *(({"dual_clip": x}, f"dual_clip must be finite and above 1, got {x}") for x in (1.0, math.nan)),
    ({"delta": 0.9}, "delta must be finite and above 1 .* got 0.9"),
    ({"delta": 1.28, "clip_high": 0.28}, r"delta must be finite and above 1 \+ clip_high = 1.28, got 1.28"),
    by=partial(check_combination, **GOOD, update_epochs=2),
)


test_options_refuse = refuses(
    ({"clip_low": -0.1}, "clip_low and clip_high must be at least 0 and finite, got -0.1 and 0.2"),
    ({"clip_high": math.inf}, "clip_low and clip_high must be at least 0 and finite, got 0.2 and inf"),
    *(({"ratio_cap": x}, f"ratio_cap must be at least 1, got {x}") for x in (0.28, math.nan)),
    ({"tau_positive": 0.0}, "tau_positive must be finite and above 0"),
    ({"tau_negative": -1.0}, "tau_negative must be finite and above 0"),
    ({"max_decisions": 0}, "max_decisions must be at least 1, got 0"),
    by=LossOptions,
)


def test_with_clip_replaces_what_is_given_and_checks_it():
    options = LossOptions(clip_low=0.1, clip_high=0.3, delta=1.5)
    assert with_clip(options, None, None) == options
    assert with_clip(options, 0.2, None) == LossOptions(clip_low=0.2, clip_high=0.3, delta=1.5)
    assert with_clip(options, 0.0, 0.0) == LossOptions(clip_low=0.0, clip_high=0.0, delta=1.5)
    with pytest.raises(ValueError, match="delta must be finite and above"):
        with_clip(options, None, 0.6)
