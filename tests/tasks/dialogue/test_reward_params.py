from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from grpo_pipeline.rewards.functions import check_measure
from grpo_pipeline.tasks.dialogue.rewards import BUILT_IN, RewardParams

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "dialogue_rewards.md"
SECTION = {
    "weights": {"f1": 1.0, "bleu": 0.5},
    "bleu_smoothing": "floor",
    "own": {"long": {"function": "tiny_rewards:slow", "weight": 0.25, "options": {"seconds": 0.0}}},
    "failure": {"rule": "exclude"},
    "pool": {"workers": 0, "timeout_seconds": 10, "start_seconds": 60, "chunk_size": 8, "cache_size": 100},
}


def test_the_documented_section_is_read():
    text = DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    section = yaml.safe_load(text)["dialogue"]["rewards"]
    params = RewardParams.model_validate(section)
    assert set(params.part_weights) == set(BUILT_IN)
    assert params.model_dump(exclude_defaults=True).keys() == section.keys()


def test_parts_are_built_in_and_own():
    params = RewardParams.model_validate(SECTION)
    assert params.part_weights == {"f1": 1.0, "bleu": 0.5, "long": 0.25}
    assert params.measures["bleu"].options == {"smoothing": "floor"}
    assert params.measures["long"].options == {"seconds": 0.0}
    for measure in params.measures.values():
        check_measure(measure)


def test_a_part_without_a_weight_is_not_even_imported():
    unknown = {"function": "no_such_module:f", "weight": 0.0}
    params = RewardParams.model_validate(SECTION | {"weights": {"f1": 1.0, "bleu": 0.0}, "own": {"off": unknown}})
    assert dict(params.part_weights) == {"f1": 1.0}
    assert list(params.measures) == ["f1"]


def own(**changes):
    return {"own": {"long": SECTION["own"]["long"] | changes}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"f1": -1.0}}, r"reward weights must be finite and >= 0, got {'f1': -1.0}"),
        ({"weights": {"f1": float("inf")}}, r"finite number"),
        ({"weights": {"f1": float("nan")}}, r"finite number"),
        ({"weights": {"f1": 0.0}, "own": None}, r"some reward weight must be positive, got {'f1': 0.0}"),
        ({"weights": {}, "own": None}, r"some reward weight must be positive, got {}"),
        ({"weights": {"rouge_1": 1.0}}, "weights.rouge_1"),
        ({"bleu_smoothing": "some"}, "bleu_smoothing"),
        ({"own": {"f1": SECTION["own"]["long"]}}, "the name of an own reward must be a new word, got 'f1'"),
        (own(function="tiny_rewards:nothing"), "'tiny_rewards:nothing' must be importable"),
        (own(function="tiny_rewards:one_argument", options={}), "'tiny_rewards:one_argument' must take"),
        (own(options={}), "missing a required argument: 'seconds'"),
        (own(weight=-0.5), "own.long.weight"),
        ({"failure": {"rule": "exclude", "penalty": 0.0}}, "absent for others, got 0.0 for 'exclude'"),
        ({"failure": {"rule": "stop", "penalty": -1.0}}, "absent for others, got -1.0 for 'stop'"),
        ({"failure": {"rule": "penalty"}}, "must be a number for rule 'penalty' and absent for others, got None"),
        ({"failure": {"rule": "zero"}}, "failure.rule"),
        ({"failure": {"rule": "penalty", "penalty": float("-inf")}}, "failure.penalty"),
        ({"temperature": 1}, "temperature"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValidationError, match=message):
        RewardParams.model_validate(SECTION | changes)
