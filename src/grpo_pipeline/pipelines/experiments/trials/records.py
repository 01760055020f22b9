"""A trial of the grid: one arm trained with one seed, on one fold where there are folds; and what it leaves behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import pandas as pd

from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.pipelines.experiments.trials.arms import ResolvedArm

Status = Literal["finished", "failed"]


class CompareError(RuntimeError):
    """A grid of trials cannot be trained or compared."""


@dataclass(frozen=True)
class Trial:
    """One training of the grid.

    Attributes:
        arm: name of the arm.
        seed: of weights, data order and samples.
        fold: name of the fold, None without folds.
        split: example id -> train, val or test, in the place of the examples' own split; None keeps that.
    """

    arm: str
    seed: int
    fold: str | None = None
    split: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Name of the trial: ``grpo.seed0``, ``grpo.seed0.fold2``."""
        return f"{self.arm}.seed{self.seed}" + ("" if self.fold is None else f".fold{self.fold}")


@dataclass(frozen=True)
class Plan:
    """The trials that a comparison is to train.

    Attributes:
        task: name of the task.
        arms: name -> resolved arm, the control first.
        trials: in the order in which they are trained; their keys differ.
    """

    task: str
    arms: Mapping[str, ResolvedArm]
    trials: tuple[Trial, ...]


@dataclass(frozen=True)
class TrialHeader:
    """The content of ``trial.json``: how a finished or failed trial describes itself.

    Attributes:
        key: name of the trial.
        task: name of the task.
        arm: name of the arm.
        seed: its seed.
        fold: its fold, or None.
        status: finished or failed.
        seconds: of training and prediction.
        digest: of everything that decides its result (``engine.py``).
        parameters: every parameter of the arm, resolved.
        metrics: the task's metrics of the arm's rule on the test split, without those that are undefined.
        reason: why it failed, in one sentence; None if it did not.
    """

    key: str
    task: str
    arm: str
    seed: int
    fold: str | None
    status: Status
    seconds: float
    digest: str
    parameters: Mapping[str, Any] = field(repr=False)
    metrics: Mapping[str, float] = field(default_factory=dict, repr=False)
    reason: str | None = None


@dataclass(frozen=True)
class TrialRecord:
    """A header and the files beside it; a failed trial has none but the traceback.

    Attributes:
        header: what it is and how it ended.
        predictions: prediction rows of the test split.
        metric_rows: training and validation metrics by step.
        weights: final weights where they are kept.
        traceback: of a failure.
    """

    header: TrialHeader
    predictions: pd.DataFrame | None = field(default=None, repr=False)
    metric_rows: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    weights: ModelWeights | None = field(default=None, repr=False)
    traceback: str | None = field(default=None, repr=False)


class StoredTrials(Protocol):
    """The trials on disk: headers in memory, predictions when asked for."""

    @property
    def headers(self) -> Mapping[str, TrialHeader]:
        """Key -> header, of finished and failed trials."""
        ...

    def predictions(self, key: str) -> pd.DataFrame:
        """Read the prediction rows of a finished trial."""
        ...

    def metric_rows(self, key: str) -> pd.DataFrame:
        """Read the metrics by step of a finished trial."""
        ...


def plan_grid(task: str, arms: Mapping[str, ResolvedArm], seeds: Sequence[int]) -> Plan:
    """Return every arm with every seed; seed by seed, so that a grid that is stopped holds whole comparisons."""
    return Plan(task, arms, tuple(Trial(arm, seed) for seed in seeds for arm in arms))
