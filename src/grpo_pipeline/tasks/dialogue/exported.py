"""Serve an exported dialogue model from its folder alone; the module is found by its name."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.dialogue.exported_model import read_exported
from grpo_pipeline.tasks.dialogue.prompt_answers import answer_request
from grpo_pipeline.tasks.serving import Column, Serving

INPUTS = (Column("question", "string", True), Column("stories", "string[]"))
OUTPUTS = (Column("reply", "string", True), Column("replies", "string[]", True))
TALKS = (Column("earlier_turns", "string[]"), Column("answers", "string[]"))
"""Of a model that was trained with an environment, too."""
TALKED = (
    Column("transcript", "string[]"),
    Column("paid", "double"),
    Column("transcripts", "string[][]"),
    Column("payments", "double[]"),
)


def _inputs(config: Mapping[str, Any]) -> list[Column]:
    return [*INPUTS, *(TALKS if "environment" in config else ())]


def _outputs(config: Mapping[str, Any]) -> list[Column]:
    return [*OUTPUTS, *(TALKED if "environment" in config else ())]


SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=_inputs,
    outputs=_outputs,
    options={"seed": 0, "samples": 0},
    example=lambda: pd.DataFrame({"question": ["persona: i like tea . context: hello"]}),
    needs=frozenset({"language_model", "prompt", "replies"}),
    requirements=(
        "mlflow",
        "numpy",
        "pandas",
        "peft",
        "pydantic",
        "safetensors",
        "scipy",
        "tokenizers",
        "torch",
        "tqdm",
        "transformers",
    ),
    names=lambda config: config.get("columns", {}),
)
