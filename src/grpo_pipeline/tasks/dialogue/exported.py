"""Serve an exported dialogue model from its folder alone; the module is found by its name."""

import pandas as pd

from grpo_pipeline.tasks.dialogue.exported_model import read_exported
from grpo_pipeline.tasks.dialogue.prompt_answers import answer_request
from grpo_pipeline.tasks.serving import Column, Serving

SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=lambda config: [Column("question", "string", True), Column("stories", "string[]")],
    outputs=lambda config: [Column("reply", "string", True), Column("replies", "string[]", True)],
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
