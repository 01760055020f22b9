"""An audit has one start."""

import pytest

from grpo_pipeline.tasks.defaults import AuditPlan


def plan(**policies):
    return AuditPlan("core_id", "patient_id", policies, weights={"f1": 1.0}, metrics={"f1": "higher"})


def test_the_start_is_found_by_its_role():
    assert plan(uniform="trivial", policy="start", oracle="ceiling").start == "policy"


@pytest.mark.parametrize("policies", [{"uniform": "trivial"}, {"a": "start", "b": "start"}])
def test_none_or_two_starts_are_refused(policies):
    with pytest.raises(ValueError, match="exactly one audited policy must have the role start"):
        plan(**policies)
