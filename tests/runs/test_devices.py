"""A device that is not there is refused before anything is read; the pipelines that compute nothing need none."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from kedro.pipeline import Node, Pipeline
from kedro_processes import run

from grpo_pipeline.pipeline_registry import PIPELINES, register_pipelines
from grpo_pipeline.runs.devices import check_devices, devices
from grpo_pipeline.tasks import BUILT_IN

REGISTERED = register_pipelines()
COMPUTES = {
    "": True, "data": False, "train": True, "evaluate": False, "step": True, "gradient_flow": True, "reward_audit": True,
    "compare": True, "cross_validate": True,
}  # fmt: skip
GIVEN = {task: {"training": {"device": f"cuda:{number}"}} for number, task in enumerate(BUILT_IN, start=3)}


@pytest.mark.parametrize("part", COMPUTES)
@pytest.mark.parametrize("task", BUILT_IN)
def test_the_pipelines_that_compute_are_those_that_need_the_device(task: str, part: str) -> None:
    assert COMPUTES.keys() >= {*PIPELINES} - {"predict"}
    pipeline = REGISTERED[f"{task}_{part}" if part else task]
    wanted = [(f"{task}.training.device", GIVEN[task]["training"]["device"])] if COMPUTES[part] else []
    assert list(devices(pipeline, GIVEN)) == wanted


@pytest.mark.parametrize(("device", "count"), [("cuda", 0), ("cuda:1", 1)])
def test_a_device_that_is_not_there_is_named_with_its_parameter(monkeypatch: Any, device: str, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    pipeline = Pipeline([Node(lambda training: training, "params:molecules.training", "task", name="build")])
    said = re.escape(f"molecules.training.device must be a device that torch finds, got {device} with {count} CUDA devices")
    with pytest.raises(ValueError, match=said):
        check_devices(pipeline, {"molecules": {"training": {"device": device}}})
    check_devices(pipeline, {"molecules": {"training": {"device": "cpu"}}, "attention": {"training": {"device": device}}})
    check_devices(pipeline, {"molecules": {"training": {"device": "auto"}}})


@pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device, and shows what is said without one")
@pytest.mark.parametrize("task", BUILT_IN)
def test_the_environment_for_a_gpu_is_refused_without_one_before_the_first_node(
    make_project: Any, tmp_path: Path, task: str
) -> None:
    project = make_project(tmp_path / "project")
    done = run(project, "--pipelines", task, env="gpu")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"error: {task}.training.device must be a device that torch finds, got cuda with 0 CUDA devices; set it to cpu"
        in done.stderr
    )
    assert not [path for path in (project / "data").rglob("*") if path.is_file()]
    assert not (project / "mlflow.db").exists()
