"""Serve an exported molecule model from its folder alone; the module is found by its name."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.molecules.exported_model import read_exported
from grpo_pipeline.tasks.molecules.prompt_answers import answer_request, sizes_and_counts
from grpo_pipeline.tasks.serving import Column, Serving


def request_columns(config: Mapping[str, Any]) -> list[Column]:
    """List the columns of a request: size, count, and the properties that the model's prompts name."""
    return [
        Column("size", "long", True),
        Column("count", "long"),
        *(Column(name, "double", True) for name in config.get("scales", {})),
    ]


SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=request_columns,
    outputs=lambda config: [
        *(Column(name, "long", True) for name in ("row", "sample", "size")),
        Column("smiles", "string", True),
        Column("is_valid", "boolean", True),
        Column("cause", "string", True),
    ],
    options={"seed": 0},
    example=lambda: pd.DataFrame({"size": [5], "count": [1]}),
    needs=frozenset({"prompt", "denoiser", "noise", "vocabulary"}),
    requirements=(
        "mlflow",
        "numpy",
        "pandas",
        "pydantic",
        "rdkit",
        "safetensors",
        "scipy",
        "torch",
        "tqdm",
    ),
    line="smiles",
    reason="cause",
    draws=sizes_and_counts,
)
