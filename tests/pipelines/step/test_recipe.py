"""The tables of a step: rows of every arm, rows of parts at their places, and inputs that only some parts make."""

from collections import Counter

import pytest

from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import PARTS, Parts
from grpo_pipeline.pipelines.step.part import StepPart
from grpo_pipeline.pipelines.step.wire import fold, wire


def functions(*parts: StepPart) -> Counter[str]:
    """Count the functions of a whole step by name."""
    return Counter(node.func.__name__ for node in recipe.whole(Parts(parts)).nodes)


def rows_of(part: StepPart) -> list[str]:
    return [function.__name__ for rows in part.rows.values() for _, _, function, _ in rows]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: rows_of(part)[-1])
def test_a_part_adds_its_own_rows_to_a_step_and_nothing_else(part: StepPart) -> None:
    assert rows_of(part)
    assert functions(part) - functions() == Counter(rows_of(part))
    assert functions() - functions(part) == Counter()


def test_parts_act_at_a_place_in_the_order_of_their_list() -> None:
    """A penalty is taken from rewards whose credit is known, and reads the reference; terms of a loss are added in one order."""
    acting = {place: [row[2].__name__ for row in Parts(PARTS).rows(place)] for place in ("after_reward", "loss")}
    assert acting["after_reward"] == ["credit_decisions", "score_reference", "penalise_kl", "predict_values"]
    assert acting["loss"] == ["supervised_term", "score_actions", "policy_term", "entropy_term", "kl_term", "value_term"]


def test_an_input_is_the_last_of_its_name_and_left_out_where_nothing_makes_it() -> None:
    def source() -> float:
        return 1.0

    def double(value: float) -> float:
        return 2 * value

    def read(value: float = -1.0, other: float = -1.0) -> tuple[float, float]:
        return value, other

    reader = ("", "found", read, "value? other?")
    made = ("", "value", source, ""), ("", "value", double, "value")
    assert fold(wire(reader).nodes, {"other": 7.0})["found"] == (-1.0, -1.0)
    assert fold(wire(*made, reader).nodes, {})["found"] == (2.0, -1.0)
    assert fold(wire(*made[:1], reader, *made[1:]).nodes, {})["found"] == (1.0, -1.0)
