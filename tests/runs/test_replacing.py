"""Who names another kind of a section has that kind alone, and what else is named is merged, null included.

In an environment, on the command line, in an arm of a comparison.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader, base_parameters
from grpo_pipeline.settings import CONFIG_LOADER_ARGS, CONFIG_LOADER_CLASS

ROOT = Path(__file__).resolve().parents[2]
OWN = {"short": {"function": "mine:short", "weight": 1.0}}
BASE = yaml.safe_load((ROOT / "conf/base/dialogue/parameters_training.yml").read_text())["dialogue"]["reward"]


@pytest.mark.parametrize(
    ("named", "given", "wanted"),
    [
        ({}, None, BASE),
        ({"f1": {"weight": 2.0}, "bleu": None}, None, BASE | {"f1": {"weight": 2.0}, "bleu": None}),
        ({"own": OWN}, {"f1": None}, BASE | {"own": OWN, "f1": None}),
        ({"f1": None, "own": OWN}, {"f1": {"weight": 3.0}, "own": None}, BASE | {"f1": {"weight": 3.0}, "own": None}),
    ],
)
def test_terms_of_a_reward_are_merged_and_null_takes_one_away(tmp_path: Path, named, given, wanted) -> None:
    (tmp_path / "base").symlink_to(ROOT / "conf" / "base")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/parameters_dialogue.yml").write_text(yaml.safe_dump({"dialogue": {"reward": named}}))
    runtime = {} if given is None else {"dialogue": {"reward": given}}
    loader = CONFIG_LOADER_CLASS(str(tmp_path), env="mine", runtime_params=runtime, **CONFIG_LOADER_ARGS)
    assert loader["parameters"]["dialogue"]["reward"] == wanted


def test_a_merge_changes_no_base() -> None:
    base = {"reward": BASE, "prompt": {"max_tokens": 8}}
    merged = merge(base, {"reward": {"bleu": {"weight": 2.0}}})
    assert merged == {"reward": BASE | {"bleu": {"weight": 2.0}}, "prompt": {"max_tokens": 8}}
    assert base == {"reward": BASE, "prompt": {"max_tokens": 8}}
    assert BASE["bleu"] == {"weight": 1.0}


def part(kind: str | None, **keys: Any) -> dict[str, Any]:
    """A section: a part, perhaps with a part inside."""
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
def test_a_part_of_another_kind_replaces_that_of_the_base_wherever_it_stands(base, change, wanted) -> None:
    for path in ("model", "grpo.model", "compare.arms.one.set.model", "data"):
        old, new, expected = ({"part": value, "points": 3} for value in (base, change, wanted))
        for name in reversed(path.split(".")):
            old, new, expected = {name: old}, {name: new}, {name: expected}
        assert merge(old, new) == expected
        assert merge({"any": old}, {"any": new}) == {"any": expected}


def test_terms_schedules_and_executors_are_merged_whatever_their_kind() -> None:
    """Kinds of surrogates, schedules and executors share their keys."""
    base = {
        "algorithm": {"losses": {"policy": part("grpo", weight=1.0)}},
        "training": {"temperature": part("linear", start=1.0, end=0.5)}, "executor": part("processes", workers=2),
    }  # fmt: skip
    change = {
        "algorithm": {"losses": {"policy": part("ppo")}}, "training": {"temperature": part("cosine")}, "executor": part("serial"),
    }  # fmt: skip
    for above in (lambda section: section, lambda section: {"task": {"arm": section}}):
        merged = merge(above(base), above(change))
        assert merged == above({
            "algorithm": {"losses": {"policy": part("ppo", weight=1.0)}},
            "training": {"temperature": part("cosine", start=1.0, end=0.5)}, "executor": part("serial", workers=2),
        })  # fmt: skip


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"method": "opo"}, {"method": "opo"}),
        ({"method": "batch", "eps": 0.5}, {"method": "batch", "eps": 0.5}),
        ({"method": "group", "clip": 2.0}, {"method": "group", "std": "sample", "clip": 2.0}),
        ({"credit": "marginal"}, {"method": "group", "std": "sample", "credit": "marginal"}),
    ],
)  # fmt: skip
def test_an_advantage_of_another_method_replaces_that_of_the_base(change, wanted) -> None:
    losses = {"policy": part("grpo", weight=1.0)}
    base = {"grpo": {"algorithm": {"losses": losses, "advantage": {"method": "group", "std": "sample"}}}}
    assert merge(base, {"grpo": {"algorithm": {"advantage": change}}}) == {
        "grpo": {"algorithm": {"losses": losses, "advantage": wanted}}
    }


@pytest.mark.parametrize(
    ("named", "given", "wanted"),
    [
        ({}, {"kind": "statistics"}, {"kind": "statistics"}),
        ({"size": 16}, {"kind": "statistics", "folds": 3}, {"kind": "statistics", "folds": 3}),
        (STATISTICS, {"folds": 3}, STATISTICS | {"folds": 3}),
        (STATISTICS, {"kind": "statistics", "folds": 3}, STATISTICS | {"folds": 3}),
        (STATISTICS, {"kind": "glimpse", "size": 8}, {"kind": "glimpse", "size": 8}),
        (STATISTICS, None, STATISTICS),
        ({"size": 16}, {"channels": 4}, {"kind": "glimpse", "size": 16, "channels": 4}),
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


def test_the_defaults_are_those_of_conf_base_and_its_files_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conf, read, original = str(ROOT / "conf"), [], ReplacingConfigLoader._read_dir_configs

    def note(self: Any, folder: str, patterns: Any, key: str, *rest: Any) -> Any:
        read.append((Path(folder).name, key))
        return original(self, folder, patterns, key, *rest)

    expected = CONFIG_LOADER_CLASS(conf, env="base", **CONFIG_LOADER_ARGS)["parameters"]
    monkeypatch.setattr(ReplacingConfigLoader, "_read_dir_configs", note)
    given = {"seed": 7, "attention": {"training": {"epochs": 1}}}
    loader = CONFIG_LOADER_CLASS(conf, env="smoke", runtime_params=given, **CONFIG_LOADER_ARGS)
    assert loader["parameters"]["attention"]["evaluation"]["seed"] == 7
    assert base_parameters(loader) == expected
    assert expected["attention"]["evaluation"]["seed"] == 0
    assert read.count(("base", "parameters")) == read.count(("smoke", "parameters")) == 1


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
