"""Who names reward weights has exactly these, and who names another kind of a model's part has that part alone.

In an environment, on the command line, in an arm of a comparison.
"""

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


def part(kind: str | None, **keys: Any) -> dict[str, Any]:
    """A section of a model: a part with a part inside."""
    return ({} if kind is None else {"kind": kind}) | keys


GLIMPSE, STATISTICS = part("glimpse", size=24, pool="mean"), part("statistics", folds=5)


@pytest.mark.parametrize(
    ("base", "change", "wanted"),
    [
        (GLIMPSE, STATISTICS, STATISTICS),
        (GLIMPSE, part("glimpse", size=8), GLIMPSE | {"size": 8}),
        (GLIMPSE, part(None, size=8), GLIMPSE | {"size": 8}),
        (GLIMPSE, None, None),
        (None, STATISTICS, STATISTICS),
        (part(None, folds=2), STATISTICS, STATISTICS),
        (part("new", width=8, tuning=part("lora", rank=2)), part(None, tuning=part("frozen")),
         part("new", width=8, tuning=part("frozen"))),
        (part("new", width=8, tuning=part("lora", rank=2)), part("sam", path="x"), part("sam", path="x")),
    ],
    ids=["another kind", "the same kind", "no kind", "taken away", "added", "a base without", "inside", "around"],
)  # fmt: skip
def test_a_part_of_another_kind_replaces_that_of_the_base_wherever_a_model_is_described(base, change, wanted) -> None:
    for path in ("model", "grpo.model", "compare.arms.one.set.model"):
        old, new, expected = ({"part": value, "points": 3} for value in (base, change, wanted))
        for name in reversed(path.split(".")):
            old, new, expected = {name: old}, {name: new}, {name: expected}
        assert merge(old, new) == expected
        assert merge({"any": old}, {"any": new}, depth=1) == {"any": expected}


def test_terms_of_an_objective_and_schedules_are_merged_whatever_their_kind() -> None:
    """Kinds of a surrogate share their keys."""
    base = {"algorithm": {"losses": {"policy": part("grpo", weight=1.0)}}, "temperature": part("linear", start=1.0, end=0.5)}
    change = {"algorithm": {"losses": {"policy": part("ppo")}}, "temperature": part("cosine")}
    merged = merge(base, change)
    assert merged["algorithm"]["losses"]["policy"] == part("ppo", weight=1.0)
    assert merged["temperature"] == part("cosine", start=1.0, end=0.5)


@pytest.mark.parametrize(
    ("named", "given", "wanted"),
    [
        ({}, {"kind": "statistics"}, {"kind": "statistics"}),
        ({"size": 16}, {"kind": "statistics", "folds": 3}, {"kind": "statistics", "folds": 3}),
        (STATISTICS, {"folds": 3}, STATISTICS | {"folds": 3}),
        (STATISTICS, {"kind": "glimpse", "size": 8}, {"kind": "glimpse", "size": 8}),
        (STATISTICS, None, STATISTICS),
        ({"size": 16}, {"channels": 4}, {"kind": "glimpse", "size": 16, "channels": 4, "pool": "mean"}),
    ],
)
def test_the_command_line_names_another_kind_than_base_and_environment(tmp_path: Path, named, given, wanted) -> None:
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    (tmp_path / "mine").mkdir()
    model = {"attention": {"model": {"class_decoder": named}}}
    (tmp_path / "mine/parameters.yml").write_text(yaml.safe_dump(model))
    runtime = {} if given is None else {"attention": {"model": {"class_decoder": given, "policy": {"prior": None}}}}
    loader = CONFIG_LOADER_CLASS(str(tmp_path), env="mine", runtime_params=runtime, **CONFIG_LOADER_ARGS)
    found = loader["parameters"]["attention"]["model"]
    assert found["class_decoder"] == wanted
    assert found["policy"]["channels"] == 32


def test_null_on_the_command_line_takes_a_part_away(tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    (tmp_path / "mine").mkdir()
    policy = {"prior": {"kind": "dark_blobs"}, "stop": {"min_points": 1}}
    (tmp_path / "mine/parameters.yml").write_text(yaml.safe_dump({"attention": {"model": {"policy": policy}}}))
    runtime = {"attention": {"model": {"policy": {"prior": None}}}}
    loader = CONFIG_LOADER_CLASS(str(tmp_path), env="mine", runtime_params=runtime, **CONFIG_LOADER_ARGS)
    found = loader["parameters"]["attention"]["model"]["policy"]
    assert (found["prior"], found["stop"]) == (None, {"min_points": 1})


def test_an_environment_names_another_kind_than_what_it_extends_and_the_base(tmp_path: Path) -> None:
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    for name, decoder in (("mine", {"size": 16}), ("heirs", {"kind": "statistics", "folds": 2})):
        (tmp_path / name).mkdir()
        (tmp_path / name / "parameters.yml").write_text(yaml.safe_dump({"attention": {"model": {"class_decoder": decoder}}}))
    (tmp_path / "heirs/globals.yml").write_text("extends: mine")
    loader = CONFIG_LOADER_CLASS(str(tmp_path), env="heirs", **CONFIG_LOADER_ARGS)
    found = loader["parameters"]["attention"]["model"]
    assert (found["class_decoder"], found["points"]) == ({"kind": "statistics", "folds": 2}, 3)
