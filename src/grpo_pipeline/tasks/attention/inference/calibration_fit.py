"""Fit the calibration of a model's prediction on the validation split; nothing here sees a test core.

Sources: Platt, "Probabilistic outputs for support vector machines", 1999, section 2.2 (logistic fit with smoothed targets);
Guo et al., "On calibration of modern neural networks", 2017, section 4.2 (temperature). How this differs: the temperature is
fitted to Platt's smoothed targets too, so that both are finite where the validation split is perfectly separated.
"""

from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.special import expit

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.statistics import weighted
from grpo_pipeline.tasks.attention.batch import AttentionData
from grpo_pipeline.tasks.attention.data.core_frames import core_rows
from grpo_pipeline.tasks.attention.data.table_columns import FRAME_COLUMN
from grpo_pipeline.tasks.attention.evaluation.point_rules import PointTask
from grpo_pipeline.tasks.attention.inference.calibration import Calibration, Change
from grpo_pipeline.tasks.attention.inference.set_logits import combine_logits, mean_logits
from grpo_pipeline.tasks.attention.model.model import AttentionModel
from grpo_pipeline.tasks.base import Task

BATCH_SIZE, BINS = 64, 10

POINT_SETS = 8
"""Of each core: their mean probability is calibrated, as a prediction gives it (``attention.predict.n_samples``)."""

MIN_PER_CLASS = 10
"""Cores of each class below which two numbers are too many to fit."""

CONSTANT = 1e-6
"""Standard deviation of the logits below which there is nothing to fit."""


def calibrate(
    task: PointTask, policy: AttentionModel, data: AttentionData, rows: np.ndarray, *, seed: int
) -> dict[str, Any]:
    """Fit the calibration of the mean probability of point sets; returns it as JSON values, with what it was fitted on.

    A core counts once: the probability of each set is combined over its frames first.
    """
    logits = prediction_logits(task, policy, data, rows, seed=seed)  # [n, E]
    table = data.examples.table.iloc[rows]
    label = core_rows(table)["label"].to_numpy()
    if FRAME_COLUMN in table:
        codes = pd.factorize(table["core_id"])[0]  # in the order of the cores' first rows
        logits = combine_logits(logits, codes, task.aggregate.core)
    fitted = fit_calibration(mean_logits(logits), label == 1)
    told = {"seed": seed, "n_samples": POINT_SETS}
    return fitted.model_copy(update=told).model_dump(mode="json")


@torch.no_grad()
def prediction_logits(
    task: Task, policy: AttentionModel, data: AttentionData, rows: np.ndarray, *, seed: int
) -> np.ndarray:
    """Return the class logits of every row with ``POINT_SETS`` sets of k points of the policy, float64 [n, E]."""
    logits = [np.empty((0, POINT_SETS))]
    for number, start in enumerate(range(0, len(rows), BATCH_SIZE)):
        batch = task.make_batch(data, rows[start : start + BATCH_SIZE])
        context = task.encode(policy, batch)
        generator = step_generator(seed, number, stream=Stream.CALIBRATION, device=task.device)
        rollouts = task.sample(
            policy, context, POINT_SETS, temperature=1.0, proposal="policy", generator=generator
        )
        outcomes = task.decode(policy, context, rollouts, batch)
        logits.append(outcomes.class_logits.double().cpu().numpy())
    return np.concatenate(logits)


def fit_calibration(logits: np.ndarray, is_positive: np.ndarray) -> Calibration:
    """Fit slope and intercept by maximum likelihood, or the slope alone where a class has few cores.

    Args:
        logits: float [n].
        is_positive: bool [n].

    Returns:
        ``method: none`` with the reason for a single class, for constant logits, and for a slope that is not positive: it
        would turn the order of the cores round.
    """
    n, positives = len(logits), int(is_positive.sum())
    fewest = min(positives, n - positives)
    told: dict[str, Any] = {"n": n, "positives": positives, "bins": BINS}
    if fewest == 0:
        got = f"{positives} positive and {n - positives} negative"
        return Calibration(
            method="none", reason=f"needs validation cores of both classes, got {got}", **told
        )
    if logits.std() < CONSTANT:
        return Calibration(
            method="none",
            reason="needs class logits that differ between cores, got one value",
            **told,
        )
    slope, intercept = logistic_fit(logits, is_positive, with_intercept=fewest >= MIN_PER_CLASS)
    if not slope > 0:
        reason = f"needs logits that rise with the label, got the slope {slope:.3g} on the validation split"
        return Calibration(method="none", reason=reason, **told)
    is_platt = fewest >= MIN_PER_CLASS
    rule = f"{fewest} cores in the smaller class, {'at least' if is_platt else 'fewer than'} {MIN_PER_CLASS}"
    probs = {"before": expit(logits), "after": expit(slope * logits + intercept)}
    return Calibration(
        method="platt" if is_platt else "temperature",
        reason=rule,
        slope=slope,
        intercept=intercept,
        brier=Change(
            **{when: float(np.mean((prob - is_positive) ** 2)) for when, prob in probs.items()}
        ),
        ece=Change(**{when: calibration_error(prob, is_positive) for when, prob in probs.items()}),
        **told,
    )


def logistic_fit(
    logits: np.ndarray, is_positive: np.ndarray, *, with_intercept: bool
) -> tuple[float, float]:
    """Return slope and intercept of the unpenalised logistic regression of Platt's targets on the logits.

        t = (N+ + 1) / (N+ + 2) for a positive, 1 / (N- + 2) for a negative core

    A core with target t is a positive one of weight t and a negative one of weight 1 - t.
    """
    from sklearn.linear_model import LogisticRegression  # a second that only the fit pays

    positives = int(is_positive.sum())
    targets = np.where(
        is_positive, (positives + 1) / (positives + 2), 1 / (len(logits) - positives + 2)
    )
    scale = float(logits.std())
    model = LogisticRegression(
        C=np.inf, fit_intercept=with_intercept, solver="newton-cholesky", tol=1e-10, max_iter=1000
    )
    features = np.concatenate([logits, logits])[:, None] / scale
    model.fit(
        features,
        np.repeat([1, 0], len(logits)),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    return float(model.coef_[0, 0]) / scale, float(
        np.ravel(model.intercept_)[0]
    ) if with_intercept else 0.0


def calibration_error(probs: np.ndarray, is_positive: np.ndarray) -> float:
    """Return the expected calibration error as the evaluation defines it."""
    return float(
        weighted.calibration_error(probs, is_positive, np.ones((1, len(probs))), bins=BINS)[0]
    )
