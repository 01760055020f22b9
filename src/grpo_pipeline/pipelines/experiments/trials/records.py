"""Define the records of a trial: an arm trained with a seed, on a fold if there are folds, and its results."""

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
    """A training of the grid.

    Attributes:
        arm: name of the arm.
        seed: seed of weights, data order and samples.
        fold: name of the fold, None without folds.
        split: example id -> train, val or test; None keeps the examples' own split.
    """

    arm: str
    seed: int
    fold: str | None = None
    split: Mapping[str, str] | None = field(default=None, repr=False)

    @property
    def key(self) -> str:
        """Name the trial: ``grpo.seed0``, ``grpo.seed0.fold2``."""
        return f"{self.arm}.seed{self.seed}" + ("" if self.fold is None else f".fold{self.fold}")


@dataclass(frozen=True)
class Plan:
    """The trials of a comparison, with the arms that they train.

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
    """The content of ``trial.json``: a description of a finished or failed trial.

    Attributes:
        key: name of the trial.
        task: name of the task.
        arm: name of the arm.
        seed: its seed.
        fold: its fold, or None.
        status: finished or failed.
        seconds: duration of training and prediction.
        digest: digest of all inputs that affect its result (``digest.py``).
        parameters: every parameter of the arm, resolved.
        metrics: the defined metrics of the arm's rule on the test split.
        reason: one sentence with the reason of a failure; None if it finished.
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
    """A header and the files beside it; a failed trial only has the traceback.

    Attributes:
        header: description and outcome of the trial.
        predictions: prediction rows of the test split.
        metric_rows: training and validation metrics by step.
        weights: final weights where they are kept.
        traceback: traceback of a failure.
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
    """List every arm with every seed, ordered by seed: a grid that is stopped early still holds whole comparisons."""
    return Plan(task, arms, tuple(Trial(arm, seed) for seed in seeds for arm in arms))
