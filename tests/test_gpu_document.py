"""The environment that docs/gpu.md shows passes the models that read it; a run with its switches goes through on a CPU."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from grpo_pipeline.core.params import ExecutionParams, TrainingParams
from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.tasks.attention.model.params import ModelParams

ROOT = Path(__file__).resolve().parents[1]


def shown() -> dict[str, Any]:
    block = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)[
        0
    ]
    return yaml.safe_load(block)["attention"]


def test_the_environment_in_the_document_passes() -> None:
    base = yaml.safe_load((ROOT / "conf/base/attention/parameters_training.yml").read_text(encoding="utf-8"))["attention"]
    written = shown()
    rates = base["training"]["optimizer"] | written["training"].pop("optimizer")
    training = TrainingParams(**base["training"] | written["training"] | {"optimizer": base["training"]["optimizer"] | rates})
    assert training.batch_size % training.micro_batch_size == 0
    model = ModelParams(**merge({"model": base["model"]}, {"model": written["model"]})["model"])
    assert model.checkpoint is not None
    assert written["data"]["image_size"] % 16 == 0


def test_the_document_names_every_switch() -> None:
    named = re.findall(r"^\| `(\w+)` \| ", (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(named) == set(ExecutionParams.model_fields)


@pytest.mark.slow
def test_a_run_with_the_switches_of_a_gpu_goes_through_on_a_cpu(smoke_copy: Path, kedro_run: Any) -> None:
    switches = ["precision=bf16", "memory_format=channels_last", "activation_checkpointing=encoder", "micro_batch_size=3"]
    params = ",".join(["attention.arms=grpo", *(f"attention.training.{switch}" for switch in switches)])
    done = kedro_run(smoke_copy, "--pipelines", "attention_train", "--params", params, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    file = next((smoke_copy / "data").glob("07_model_output/attention_smoke/grpo/metric_rows.jsonl"))
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    trained = [row for row in rows if row["split"] == "train"]
    assert len(trained) > 4
    assert {row["policy/ratio_first"] for row in trained} == {1.0}
    assert all(row["grad_norm/total"] > 0 for row in trained)
