"""An environment that extends another says only what differs, and keeps its results apart."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro_processes import run

from grpo_pipeline.errors import sentence
from grpo_pipeline.runs.environments import extended
from grpo_pipeline.runs.run_config_loader import RunConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS

ROOT = Path(__file__).resolve().parents[2]


def write(conf: Path, files: dict[str, Any]) -> None:
    for name, content in files.items():
        (conf / name).parent.mkdir(parents=True, exist_ok=True)
        (conf / name).write_text(yaml.safe_dump(content))


def load(conf: Path, env: str, **params: Any) -> RunConfigLoader:
    return RunConfigLoader(str(conf), env=env, runtime_params=params, **CONFIG_LOADER_ARGS)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Three environments in a row over a base: ``mine`` extends ``clinic``, which extends ``study``."""
    weights = {"reward": {"f1": {"weight": 1.0}, "length": {"weight": 0.5}}}
    write(
        tmp_path,
        {
            "base/globals.yml": {"data": "data", "attention_folder": "attention", "dialogue_folder": "dialogue"},
            "base/parameters.yml": {"seed": 0, "dialogue": weights | {"split": {"seed": 0, "test": 0.2}}},
            "base/catalog.yml": {
                "raw": {"type": "text.TextDataset", "filepath": "${globals:attention_root,none}/${globals:attention_folder}"},
            },
            "base/mlflow.yml": {"tracking": {"experiment": {"name": "all"}, "file": "a"}},
            "study/globals.yml": {
                "attention_folder": "attention_study", "attention_root": "/study", "attention_manifest": "index.csv",
                "attention_origin": "the study's site", "dialogue_root": "/talk", "dialogue_origin": "the talks",
            },
            "study/parameters.yml": {"dialogue": {"split": {"test": 0.3}, "reward": {"f1": {"weight": 2.0}, "length": None}}},
            "study/mlflow.yml": {"tracking": {"experiment": {"name": "study"}}},
            "clinic/globals.yml": {"extends": "study", "attention_root": "/clinic"},
            "clinic/parameters/a.yml": {"seed": 4, "dialogue": {"split": {"val": 0.1}}},
            "clinic/parameters/b.yml": {"note": "${seed}"},
            "mine/globals.yml": {"extends": "clinic"},
            "mine/parameters.yml": {"seed": 7},
            "plain/globals.yml": {"attention_folder": "attention_plain"},
        },
    )  # fmt: skip
    return tmp_path


def test_what_an_environment_does_not_say_is_that_of_the_one_it_extends(conf: Path) -> None:
    assert extended(conf, "mine") == [conf / "study", conf / "clinic"]
    assert extended(conf, "study") == []
    loader = load(conf, "mine")
    found = loader["parameters"]
    # test from study, val from clinic, the split's seed from base; null takes a term away.
    assert found["dialogue"]["split"] == {"seed": 0, "test": 0.3, "val": 0.1}
    assert found["dialogue"]["reward"] == {"f1": {"weight": 2.0}, "length": None}
    assert (found["seed"], found["note"]) == (7, 7)
    assert loader["mlflow"]["tracking"] == {"experiment": {"name": "study"}, "file": "a"}
    assert load(conf, "mine", seed=9)["parameters"]["note"] == 9
    assert load(conf, "clinic")["parameters"]["note"] == 4


def test_results_lie_apart_and_data_of_its_own_have_no_other_origin(conf: Path) -> None:
    mine, clinic = (load(conf, env)["globals"] for env in ("mine", "clinic"))
    assert mine == {
        "data": "data", "attention_folder": "attention_mine", "dialogue_folder": "dialogue_mine",
        "molecules_folder": "molecules_mine", "attention_root": "/clinic",
        "attention_manifest": "index.csv", "dialogue_root": "/talk", "dialogue_origin": "the talks",
    }  # fmt: skip
    assert clinic == mine | {f"{task}_folder": f"{task}_clinic" for task in ("attention", "dialogue", "molecules")}
    assert load(conf, "study")["globals"]["attention_origin"] == "the study's site"
    assert load(conf, "mine")["catalog"]["raw"]["filepath"] == "/clinic/attention_mine"
    assert load(conf, "mine", attention_folder="other")["catalog"]["raw"]["filepath"] == "/clinic/other"
    assert load(conf, "plain")["globals"] == {
        "data": "data",
        "attention_folder": "attention_plain",
        "dialogue_folder": "dialogue",
        "molecules_folder": "molecules_plain",  # which base does not name
    }


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"a": "b", "b": "c", "c": "a"}, "{conf}/c/globals.yml: extends must not lead back .*, got a -> b -> c -> a; remove it"),
        ({"a": "a"}, "{conf}/a/globals.yml: extends must not lead back .*, got a -> a; remove it"),
        ({"a": "bsui"}, "{conf}/a/globals.yml: extends must name another environment of {conf}, got 'bsui'; take one of .*study"),
        ({"a": "base"}, "{conf}/a/globals.yml: extends must name another environment of {conf}, got 'base'; take one of "),
        ({"a": ["study", "plain"]}, r"{conf}/a/globals.yml: extends must name another .*, got \['study', 'plain'\]; take one"),
        ({"a": "../x"}, "{conf}/a/globals.yml: extends must name another environment of {conf}, got '../x'; take one of "),
    ],
    ids=["circle", "itself", "unknown", "base", "two", "outside"],
)  # fmt: skip
def test_what_cannot_be_extended_is_refused_with_its_file(conf: Path, files: dict[str, Any], said: str) -> None:
    write(conf, {f"{name}/globals.yml": {"extends": other} for name, other in files.items()})
    with pytest.raises(ValueError, match="^" + said.format(conf=re.escape(str(conf)))) as refused:
        load(conf, "a")
    assert sentence(refused.value)


def test_an_environment_of_ones_own_in_three_lines(make_project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a run, and in the session of a notebook and of Kedro-Viz."""
    project = make_project(tmp_path / "project")
    write(project / "conf", {"mine/globals.yml": {"extends": "busi", "attention_root": str(tmp_path / "images")}})
    done = run(project, "--pipelines", "attention_data", env="mine")
    said = f"the data root must be an existing folder, got nothing at {tmp_path}/images; set attention_root in globals.yml"
    assert done.returncode == 1
    assert said in done.stderr
    assert "scholar.cu.edu.eg" not in done.stderr
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    bootstrap_project(project)
    with KedroSession.create(project_path=project, env="mine") as session:
        context = session.load_context()
        assert context.params["attention"]["arms"] == load(ROOT / "conf", "busi")["parameters"]["attention"]["arms"]
        assert "attention_mine" in str(context.catalog.get("attention.report"))
