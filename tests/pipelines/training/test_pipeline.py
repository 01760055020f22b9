from pathlib import Path
from typing import Any

from kedro.io import DataCatalog, MemoryDataset
from kedro.runner import SequentialRunner
from tiny_attention import algorithm_params, differing, make_data, make_task, training_params, weights

from grpo_pipeline.core.storage.checkpoint import NoCheckpoint
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.pipelines.training import nodes
from grpo_pipeline.pipelines.training.pipeline import create_pipeline

PREFIX = "attention.grpo"
TRAINING = training_params(epochs=2, batch_size=4)


def make_catalog(folder: Path) -> DataCatalog:
    """Hold what the committed catalogue holds: values by reference, the checkpoint on disk under two names."""
    checkpoint = str(folder / "checkpoint")
    values: dict[str, Any] = {
        "attention.task": make_task(),
        "attention.data": make_data(),
        f"params:{PREFIX}.algorithm": algorithm_params(),
        "params:attention.training": TRAINING,
        "params:seed": 0,
        "params:resume": "never",
    }
    catalog = DataCatalog({name: MemoryDataset(value, copy_mode="assign") for name, value in values.items()})
    for name in create_pipeline("attention", "grpo").datasets() - values.keys():
        is_checkpoint = name in (f"{PREFIX}.resume_from", f"{PREFIX}.checkpoint")
        catalog[name] = CheckpointDataset(checkpoint) if is_checkpoint else MemoryDataset(copy_mode="assign")
    return catalog


def test_the_probe_moves_a_copy_and_training_starts_from_the_untouched_weights(tmp_path: Path):
    arm = create_pipeline("attention", "grpo")
    probe = arm.to_outputs(f"{PREFIX}.initial_state", f"{PREFIX}.probe.next_state")
    made = SequentialRunner().run(probe, make_catalog(tmp_path))
    initial, moved = (made[f"{PREFIX}.{name}"].load().policy for name in ("initial_state", "probe.next_state"))
    untouched = weights(make_task().build_policy(0))
    assert differing(weights(initial), untouched) == []
    assert len(differing(weights(moved), untouched)) > 10

    SequentialRunner().run(arm.to_nodes(f"{PREFIX}.train"), make_catalog(tmp_path))
    through_kedro = CheckpointDataset(str(tmp_path / "checkpoint")).load()
    state = nodes.build_state(algorithm_params(), TRAINING, 0, make_task(), make_data())
    *_, (_, alone) = nodes.train(
        algorithm_params(), TRAINING, "never", make_task(), make_data(), state, NoCheckpoint("nowhere"), None
    )
    assert differing(dict(through_kedro.policy), dict(alone.policy)) == []
    assert len(differing(dict(alone.policy), untouched)) > 10


def test_an_arm_reads_what_it_shares_and_writes_its_own():
    arm = create_pipeline("attention", "grpo")
    assert arm.inputs() == {
        "attention.task", "attention.data", "params:attention.training", "params:seed", "params:resume",
        f"params:{PREFIX}.algorithm", f"{PREFIX}.resume_from",
    }  # fmt: skip
    assert all(name.startswith(f"{PREFIX}.") for name in arm.datasets() - arm.inputs())
