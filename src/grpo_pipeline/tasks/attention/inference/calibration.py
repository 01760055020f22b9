"""Calibrate the class logit, so that its probability can be read as a frequency."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.special import expit

from grpo_pipeline.tasks.attention.inference.set_logits import mean_logits


class Change(BaseModel):
    """A score on the validation split before and after calibration; both on the cores that it was fitted on."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    before: float
    after: float


class Calibration(BaseModel):
    """The calibration fitted on the validation split, and how it changed the scores there.

        calibrated = sigmoid(slope * logit + intercept)

    Attributes:
        split: on whose cores it was fitted.
        rule: who chose their points.
        n_samples: point sets per core, whose mean probability was calibrated; models of before have 1.
        seed: of the points.
        method: ``platt`` has both numbers, ``temperature`` the slope 1 / T alone, ``none`` neither: there is no calibration.
        reason: why this method.
        slope: above 0, so that the order of the cores stays; None without a calibration.
        intercept: 0 for ``temperature``.
        n: validation cores.
        positives: cores with cancer among them.
        brier: mean squared error of the probability.
        ece: expected calibration error in ``bins`` equal-width bins.
        bins: of the calibration error.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    split: Literal["val"] = "val"
    rule: Literal["policy"] = "policy"
    n_samples: int = Field(default=1, ge=1)
    seed: int = 0
    method: Literal["platt", "temperature", "none"]
    reason: str
    slope: float | None = Field(default=None, gt=0)
    intercept: float | None = None
    n: int = Field(ge=0)
    positives: int = Field(ge=0)
    brier: Change | None = None
    ece: Change | None = None
    bins: int = Field(ge=2)

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Return calibrated probabilities, float64 of the shape of ``logits``; NaN where there is no calibration."""
        if self.slope is None or self.intercept is None:
            return np.full(np.shape(logits), np.nan)
        return np.asarray(expit(self.slope * np.asarray(logits, np.float64) + self.intercept))

    def of_sets(self, logits: np.ndarray) -> float:
        """Return the calibrated probability of a core by the logits of its point sets, [E]; NaN where there is no calibration.

        It is that of their mean probability; of a model whose calibration was fitted on single sets, the mean of theirs.
        """
        if self.n_samples == 1:
            return float(self.apply(logits).mean())
        return float(self.apply(mean_logits(logits)))
