"""Predict with a trained arm of the dialogue task: a file of new prompts -> replies, row by row."""

from typing import Any

import pandas as pd
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.tasks.dialogue.params import PredictParams
from grpo_pipeline.tasks.dialogue.prompt_answers import answer
from grpo_pipeline.tasks.loaded import load
from grpo_pipeline.tasks.trained_arms import TrainedArms, version_of

LIKELIEST = "likeliest"


def write_replies(
    params: PredictParams, prompts: pd.DataFrame, models: TrainedArms
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Write replies, a row each, the likeliest of each prompt first; returns them with a report on the model.

    Raises:
        FileNotFoundError: if the arm has no model.
        ValueError: a prompt is invalid. The sentence names the first such prompt.
    """
    folder = models.find(params.arm, parameter="dialogue.predict.arm")
    loaded = load(folder)
    prompts = loaded.serving.request(prompts, loaded.config)
    answers = answer(loaded.model, prompts, samples=params.samples, seed=params.seed)
    rows = [
        {"row": number, "question": question, "sample": sample, "reply": reply}
        for number, (question, likeliest, drawn) in enumerate(
            zip(prompts["question"], answers["reply"], answers["replies"], strict=True)
        )
        for sample, reply in [(LIKELIEST, likeliest), *((str(i), x) for i, x in enumerate(drawn))]
    ]
    report = params.model_dump() | {
        "rows": len(prompts),
        "scored": len(prompts),
        "quarantined": 0,
        "model": version_of(folder),
        "absent_columns": [] if "stories" in prompts else ["stories"],
        "notes": [],
    }
    return pd.DataFrame(rows), report


def create_prediction() -> Pipeline:
    """Reply to the prompts of ``dialogue.predict.prompts`` with the newest model of an arm."""
    return Pipeline(
        [
            Node(
                write_replies,
                inputs=[
                    "params:dialogue.predict",
                    "dialogue.predict.prompts",
                    "dialogue.predict.models",
                ],
                outputs=["dialogue.predict.samples", "dialogue.predict.report"],
                name="write_replies",
                namespace="dialogue.predict",
            )
        ],
        tags=["dialogue", "predict"],
    )
