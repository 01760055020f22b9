"""Who names reward weights has exactly these: in an environment, on the command line, in an arm of a comparison."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.settings import CONFIG_LOADER_ARGS, CONFIG_LOADER_CLASS

ROOT = Path(__file__).resolve().parents[2]
OWN = {"short": {"function": "mine:short", "weight": 1.0}}
BASE = yaml.safe_load((ROOT / "conf/base/dialogue/parameters_training.yml").read_text())["dialogue"]["rewards"]


def rewards(conf: Path, *, named: dict[str, Any] | None = None, given: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return what is read where an environment names some rewards, and the command line others."""
    (conf / "base").symlink_to(ROOT / "conf" / "base")
    (conf / "mine").mkdir()
    (conf / "mine/parameters_dialogue.yml").write_text(yaml.safe_dump({"dialogue": {"rewards": named or {}}}))
    runtime = {} if given is None else {"dialogue": {"rewards": given}}
    loader = CONFIG_LOADER_CLASS(str(conf), env="mine", runtime_params=runtime, **CONFIG_LOADER_ARGS)
    found: dict[str, Any] = loader["parameters"]["dialogue"]["rewards"]
    return found


@pytest.mark.parametrize(
    ("named", "given", "weights", "own"),
    [
        ({}, None, BASE["weights"], None),
        ({"weights": {"f1": 2.0}}, None, {"f1": 2.0}, None),
        ({"weights": {}, "own": OWN}, None, {}, OWN),
        ({}, {"weights": {"bleu": 1.0}}, {"bleu": 1.0}, None),
        ({"weights": {"f1": 2.0}, "own": OWN}, {"weights": {"bleu": 1.0}}, {"bleu": 1.0}, OWN),
        ({"own": OWN}, {"own": None}, BASE["weights"], None),
        ({"pool": {"workers": 0}}, {"pool": {"chunk_size": 4}}, BASE["weights"], None),
    ],
)
def test_named_weights_are_all_there_are(tmp_path: Path, named, given, weights, own) -> None:
    found = rewards(tmp_path, named=named, given=given)
    assert (found["weights"], found["own"]) == (weights, own)
    # What is no set of weights is merged as ever.
    assert found["pool"] == BASE["pool"] | (named.get("pool") or {}) | ((given or {}).get("pool") or {})
    assert found["failure"] == BASE["failure"]


def test_an_arm_of_a_comparison_has_the_weights_that_it_sets() -> None:
    base = {"rewards": BASE, "prompt": {"max_tokens": 8}}
    merged = merge(base, {"rewards": {"weights": {"bleu": 1.0}, "failure": {"rule": "stop"}}})
    assert merged["rewards"] == BASE | {"weights": {"bleu": 1.0}, "failure": {"rule": "stop"}}
    assert (base["rewards"], merged["prompt"]) == (BASE, base["prompt"])
