"""A trained arm draws samples for a split, on every task."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_attention
from tiny import tiny

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.checkpoint import snapshot
from grpo_pipeline.core.storage.weights import ModelWeights, save_weights
from grpo_pipeline.pipelines.evaluation.prediction import sample_split
from grpo_pipeline.pipelines.params import SamplingParams
from grpo_pipeline.pipelines.training.nodes import build_state, export_model
from grpo_pipeline.tasks.exported import TrainedArms

TASKS = ("attention", "dialogue", "molecules")
PARAMS = SamplingParams(arm="grpo", split="val", samples=3, temperature=0.7, seed=4)


def make(name: str) -> tuple[Any, Any]:
    kit = tiny(name)
    task = kit.make_task()
    return task, kit.make_data(task) if name == "dialogue" else kit.make_data()


def train(name: str, folder: Path) -> Any:
    """Write a model as a run does, its weights far from the start; returns the policy."""
    kit, (task, data) = tiny(name), make(name)
    state = build_state(kit.algorithm_params(), kit.training_params(), 0, task, data)
    tiny_attention.shake(state.policy, seed=1, scale=0.05)
    model = export_model(task, snapshot(state, progress={"position": 0, "total_steps": 1}), {})
    save_weights(folder / "grpo/model", model)
    return state.policy


@pytest.mark.parametrize("name", TASKS)
def test_the_table_is_drawn_by_the_weights_of_the_file_and_another_model_or_split_is_refused(tmp_path: Path, name: str) -> None:
    policy, (task, data) = train(name, tmp_path).eval(), make(name)
    table, report = sample_split(PARAMS, task, data, TrainedArms(tmp_path))
    rows = task.rows(data, "val")
    batch = task.make_batch(data, rows)
    generator = step_generator(4, 0, stream=Stream.PREDICTED_SAMPLES, device=task.device)
    drawn = task.sample(policy, task.encode(policy, batch), 3, temperature=0.7, proposal="policy", generator=generator)
    pd.testing.assert_frame_equal(table, task.tabulate(data, batch, drawn))
    assert (report["rows"], report["split"], report["model"]) == (len(rows), "val", "model")
    other, _ = sample_split(PARAMS.model_copy(update={"seed": 5}), task, data, TrainedArms(tmp_path))
    assert not other.equals(table)
    with pytest.raises(ValueError, match=f"{name}.predict.split must name a split with examples, got 'none'; correct it"):
        sample_split(PARAMS.model_copy(update={"split": "none"}), task, data, TrainedArms(tmp_path))
    model = TrainedArms(tmp_path).load("grpo", parameter="x")
    section = next(key for key, value in model.config.items() if isinstance(value, dict) and key != "training")
    (tmp_path / "grpo").rename(tmp_path / "before")
    save_weights(tmp_path / "grpo/model", ModelWeights(model.tensors, {**model.config, section: {"other": 1}}))
    message = f"{name}.{section} must be what the model was trained with, got another; set it back or train again"
    with pytest.raises(ValueError, match=re.escape(message)):
        sample_split(PARAMS, task, data, TrainedArms(tmp_path))
