"""A trained arm draws samples for a split, on every task."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import tiny_attention
from tiny import tiny

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights, save_weights
from grpo_pipeline.pipelines.evaluation.nodes import sample_split
from grpo_pipeline.pipelines.params import SamplingParams
from grpo_pipeline.tasks.trained_arms import TrainedArms

TASKS = ("attention", "dialogue", "molecules")
PARAMS = SamplingParams(arm="grpo", split="val", samples=3, temperature=0.7, seed=4)


def make(name: str) -> tuple[Any, Any]:
    kit = tiny(name)
    task = kit.make_task()
    return task, kit.make_data(task) if name == "dialogue" else kit.make_data()


@pytest.mark.parametrize("name", TASKS)
def test_the_table_is_drawn_by_the_weights_of_the_file_if_they_fit_the_model(tmp_path: Path, name: str) -> None:
    task, data = make(name)
    policy = tiny_attention.export(tmp_path / "grpo/model", tiny(name), task, data).eval()
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
