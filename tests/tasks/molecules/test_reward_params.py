from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from tiny_molecules import sketch

from grpo_pipeline.rewards.functions import check_measure
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.molecules import rewards
from grpo_pipeline.tasks.molecules.graphs.encoding import decode_sketch
from grpo_pipeline.tasks.molecules.params import AT_ONCE, MEASURED, MoleculeRewardParams

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "molecules_rewards.md"
SECTION = {
    "weights": {"validity": 1.0, "qed": 0.5, "logp": 1.0, "wanted": 0.125},
    "logp": {"low": 1, "high": 2, "width": 0.5},
    "size": None,
    "wanted": ["c1ccccc1"],
    "forbidden": None,
    "own": {"long": {"function": "tiny_rewards:slow", "weight": 0.25, "options": {"seconds": 0.0}}},
    "invalid": {"rule": "penalty", "penalty": 0.0},
    "failure": {"rule": "exclude"},
    "pool": {"workers": 0, "timeout_seconds": 10, "start_seconds": 60, "chunk_size": 8, "cache_size": 100},
}


def test_the_documented_section_is_read():
    section = yaml.safe_load(DOCUMENT.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0])["molecules"]["rewards"]
    params = MoleculeRewardParams.model_validate(section)
    assert set(params.part_weights) == {*AT_ONCE, *MEASURED}
    assert params.model_fields_set == set(MoleculeRewardParams.model_fields)


def test_parts_are_built_in_and_own():
    params = MoleculeRewardParams.model_validate(SECTION)
    assert params.part_weights == {"validity": 1.0, "qed": 0.5, "logp": 1.0, "wanted": 0.125, "long": 0.25}
    assert {name: dict(measure.options) for name, measure in params.measures.items()} == {
        "qed": {},
        "logp": {"low": 1.0, "high": 2.0, "width": 0.5},
        "wanted": {"patterns": ["c1ccccc1"]},
        "long": {"seconds": 0.0},
    }
    for measure in params.measures.values():
        check_measure(measure)


def test_a_part_without_a_weight_is_not_computed(monkeypatch):
    """Neither measured nor counted, whether its weight is 0 or absent; a window that nobody reads is no contradiction."""
    weights = {"validity": 1.0, "novelty": 0.0, "qed": 0.0}
    params = MoleculeRewardParams.model_validate(SECTION | {"weights": weights, "own": None})
    assert params.part_weights == {"validity": 1.0}
    assert not params.measures
    for function in ("novelty", "unique_in_group", "unique_in_batch"):
        monkeypatch.setattr(rewards, function, lambda *args: pytest.fail("it was computed"))
    with RewardPool(params.pool) as pool:
        found = rewards.submit_rewards(params, pool, molecules=[[decode_sketch(sketch("CCO"))] * 2], known={"CCO"}).result()
        assert pool.counts.measured == 0
    assert {name: part.tolist() for name, part in found.parts.items()} == {"validity": [[1.0, 1.0]]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"validity": -1.0}, "logp": None, "wanted": None}, "reward weights must be finite and >= 0, got"),
        ({"weights": {"validity": 0.0}, "logp": None, "wanted": None, "own": None}, "some reward weight must be positive"),
        (
            {"logp": None},
            "molecules.rewards.logp must be given while logp has the weight 1, got null; give it, or take the part out",
        ),
        ({"wanted": []}, "wanted"),
        ({"wanted": ["[X"]}, r"must be SMARTS that RDKit reads, got '\[X'"),
        ({"logp": {"low": 2, "high": 1, "width": 1}}, "low must be at most high, got 2.0 and 1.0; exchange them"),
        ({"logp": {"low": 1, "high": 2, "width": 0}}, "logp.width"),
        ({"logp": {"low": 1, "high": float("inf"), "width": 1}}, "logp.high"),
        (
            {"invalid": {"rule": "penalty", "penalty": None}},
            "must be a number for rule 'penalty' and null for the others, got None",
        ),
        ({"invalid": {"rule": "exclude", "penalty": 0.0}}, "null for the others, got 0.0 for 'exclude'"),
        ({"invalid": {"rule": "group_mean", "penalty": 0.0}}, "null for the others, got 0.0 for 'group_mean'"),
        (
            {"invalid": {"rule": "group_mean", "penalty": None}, "weights": SECTION["weights"] | {"validity": 0.0}},
            "must have validity with invalid.rule: group_mean",
        ),
        ({"invalid": {"rule": "exclude", "penalty": None}}, "must not have validity with invalid.rule: exclude"),
        ({"own": {"qed": SECTION["own"]["long"]}}, "the name of an own reward must be a new word, got 'qed'"),
        ({"weights": {"beauty": 1.0}}, "weights.beauty"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValidationError, match=message):
        MoleculeRewardParams.model_validate(SECTION | changes)
