"""Rows of an audit, made up: three policies, four examples of two clusters, two reward components, one metric."""

from typing import Any

import numpy as np
import pandas as pd

from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.samples import PolicySamples, read_samples
from grpo_pipeline.tasks.audit_plan import AuditPlan

PLAN = AuditPlan(
    example="name",
    cluster="owner",
    policies={"model": "start", "parrot": "trivial", "answer": "ceiling"},
    weights={"f1": 1.0, "style": 0.5, "unused": 0.0},
    metrics={"quality": "higher"},
)
OWNERS = ("a", "a", "b", "b")


def rows_of(policy: str, f1: Any, *, style: Any = 0.0, quality: Any = None) -> pd.DataFrame:
    """Return the rows of a policy: f1 [4, E]; the reward is f1 + style / 2, the metric is f1 unless given."""
    f1 = np.asarray(f1, dtype=np.float64)
    style = np.broadcast_to(np.asarray(style, dtype=np.float64), f1.shape)
    quality = f1 if quality is None else np.broadcast_to(np.asarray(quality, dtype=np.float64), f1.shape)
    frame = pd.DataFrame({"reward_f1": f1.ravel(), "reward_style": style.ravel(), "quality": quality.ravel()})
    frame["name"] = np.repeat([f"e{i}" for i in range(4)], f1.shape[1])
    frame["owner"] = np.repeat(OWNERS, f1.shape[1])
    frame["sample"] = np.tile(np.arange(f1.shape[1]), 4)
    return frame.assign(policy=policy, reward=frame["reward_f1"] + 0.5 * frame["reward_style"])


MODEL = np.array([[0.1, 0.3, 0.2], [0.4, 0.4, 0.1], [0.5, 0.2, 0.2], [0.0, 0.1, 0.3]])
STYLE = 0.4 * MODEL
STYLE[1] = STYLE[1, ::-1]


def sound(**model: Any) -> pd.DataFrame:
    """Return rows without anything to warn about: the parrot is paid 0, the answer 1."""
    components = {"style": STYLE} | model
    return pd.concat(
        [rows_of("model", MODEL, **components), rows_of("parrot", np.zeros((4, 1))), rows_of("answer", np.ones((4, 1)))]
    )


def audit_document(rows: pd.DataFrame | None = None) -> dict[str, Any]:
    """Return the document of such rows, as ``judge_reward`` returns it."""
    found = RewardDocument(read_samples(sound() if rows is None else rows, PLAN), PLAN, resamples=50, seed=0).build()
    return {"task": "talk", "split": "val", "seed": 0, "warmup_steps": 20, **found, "warnings": ["the reward is <b>dead</b>"]}


def with_model(f1: Any, **components: Any) -> pd.DataFrame:
    """Return the rows of ``sound`` with another model."""
    rows = sound()
    return pd.concat([rows_of("model", f1, **components), rows[rows["policy"] != "model"]])


def model_samples(f1: Any, **components: Any) -> PolicySamples:
    """Return the samples of such a model."""
    return read_samples(with_model(f1, **components), PLAN).policies["model"]
