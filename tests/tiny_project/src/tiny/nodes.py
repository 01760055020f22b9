import os
import signal
import time
from dataclasses import dataclass

import pandas as pd
from pydantic import BaseModel, ConfigDict

from tiny.checkpoint import Checkpoint


class Training(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    step_seconds: float
    stop: str
    stop_at: int


@dataclass(frozen=True)
class Examples:
    digest: str


def make_examples() -> Examples:
    return Examples(digest="0123456789abcdef" * 4)


def probe(examples) -> pd.DataFrame:
    return pd.DataFrame({"sample": [0, 1], "reward": [0.25, 0.75]})


def rows_of(step: int, offset: float) -> list[dict]:
    rows = [{"step": step, "epoch": step // 2, "split": "train", "reward/mean": offset + step / 10, "loss/total": 1 / (step + 1)}]
    if step % 3 == 2:
        rows.append({"step": step, "epoch": step // 2, "split": "val", "reward/mean": offset + step / 20})
    return rows


def train_arm(examples, resume_from, training: Training, offset: float, resume):
    start = resume_from.step + 1 if resume_from is not None and resume == "auto" else 0
    for step in range(start, training.steps):
        time.sleep(training.step_seconds)
        if step == training.stop_at:
            stop(training.stop)
        yield rows_of(step, offset), Checkpoint(step) if step % 2 else False
    if start >= training.steps:
        yield [], False


def stop(how: str) -> None:
    if how == "error":
        raise ValueError("loss must be finite, got nan at step 4")
    if how:
        os.kill(os.getpid(), getattr(signal, how))


def predict(examples, checkpoint) -> pd.DataFrame:
    return pd.DataFrame({"core_id": ["a", "b"], "prob": [0.25, 0.5]})


def entry(value, low, high):
    return {"value": value, "ci95": [low, high], "n": 2}


def compare(grpo, supervised) -> dict:
    nothing = {"value": None, "ci95": None, "n": 0, "reason": "no core has a lesion outline"}
    return {
        "task": "attention",
        "control": "supervised",
        "baseline_arm": "grpo",
        "split": "test",
        "n": {"examples": 2, "clusters": 2, "cluster": "patient_id"},
        "arms": {
            "supervised": {"metrics": {"auroc": entry(0.75, 0.5, 1.0), "lesion_hit": nothing}},
            "grpo": {"metrics": {"auroc": entry(0.625, 0.25, 0.875), "lesion_hit": nothing}},
        },
        "differences": {"grpo": {"auroc": entry(-0.125, -0.25, 0.0), "lesion_hit": nothing}},
        "policy_gain": {},
        "baselines": {"uniform": {"metrics": {"auroc": entry(0.5, 0.25, 0.75), "lesion_hit": nothing}}},
        **{name: {} for name in ("own_minus_arms", "own_minus_baseline", "arm_verdicts", "verdicts", "interval")},
        "summary": ["GRPO did not help."],
    }


def write_page(comparison) -> str:
    return "<p>page</p>"
