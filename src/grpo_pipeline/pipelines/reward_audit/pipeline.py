"""Wiring of the reward audit: samples of policies that need no training -> scores -> document, warnings and figure.

    task, data -> start (a few steps of the control) -> every policy scored (saved) -> document with warnings (saved)
                                                                                    -> table, figure (saved)

Rows of the training or the validation split alone: what is found here changes the reward, so the test split may not be looked at.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node, Pipeline
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.pipelines.params import RewardAuditParams
from grpo_pipeline.pipelines.reporting.figures import BLUE, GREEN, GRID, INK, VERMILLION
from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.reward_audit.warnings import (
    find_no_ceiling,
    find_warnings,
    policy_table,
)
from grpo_pipeline.pipelines.training.short_training import train_steps
from grpo_pipeline.tasks.base import Task

# The reward audit as a picture: what each policy is paid, which component differs inside groups, what agrees with the metrics.

Document = Mapping[str, Any]
ROLE_COLOURS = {"start": BLUE, "trivial": VERMILLION, "ceiling": GREEN}
SIGNS = {"higher": 1.0, "lower": -1.0, "none": 0.0}
ROW_INCHES, PANEL_INCHES = 0.42, 4.6


def reward_figure(document: Document) -> Figure:
    """Draw three panels: mean reward per policy, shares of the variance within groups, agreement within groups.

    Args:
        document: of ``judge_reward``.
    """
    rows = max(len(document["policies"]), len(document["agreement"][document["start"]]), 3)
    figure = Figure(figsize=(3 * PANEL_INCHES, 1.6 + ROW_INCHES * rows), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    draw_rewards(left, document)
    draw_shares(middle, document)
    draw_agreement(right, document)
    return figure


def draw_rewards(axes: Axes, document: Document) -> None:
    """Draw how much more than the start each policy is paid, with the paired 95% interval; its reward is behind its name."""
    policies = document["policies"]
    axes.axvline(0, color=INK, linewidth=1)
    for row, policy in enumerate(policies.values()):
        entry, colour = (
            policy["more_than_start"] or {"value": 0.0, "ci95": None},
            ROLE_COLOURS[policy["role"]],
        )
        if entry["ci95"]:
            axes.plot(entry["ci95"], [row, row], color=colour, linewidth=4, solid_capstyle="butt")
        if entry["value"] is not None:
            axes.plot([entry["value"]], [row], "o", color=colour)
    _rows(
        axes,
        [
            f"{name} ({policy['role']}), {_number(policy['reward']['value'])}"
            for name, policy in policies.items()
        ],
    )
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.grid(axis="x", color=GRID)
    axes.set_title(f"reward, and how much more than {document['start']}", fontsize=10, loc="left")


def draw_shares(axes: Axes, document: Document) -> None:
    """Draw the share of the variance within the start's groups that each component explains; its weight is behind its name."""
    components = document["policies"][document["start"]]["groups"]["components"]
    shares = [component["explained"]["value"] or 0.0 for component in components.values()]
    axes.barh(range(len(components)), shares, color=BLUE)
    axes.axvline(0, color=INK, linewidth=1)
    _rows(
        axes, [f"{name} (weight {component['weight']:g})" for name, component in components.items()]
    )
    axes.set_xlim(min(0.0, *shares) - 0.02, max(1.0, *shares) + 0.02)
    axes.grid(axis="x", color=GRID)
    axes.set_title(
        f"share of the variance within the groups of {document['start']}", fontsize=10, loc="left"
    )


def draw_agreement(axes: Axes, document: Document) -> None:
    """Draw the rank correlation within the start's groups of the reward and each component with each metric; – is undefined.

    Violet: they agree about what is good; brown: they do not; grey: the metric has no good side.
    """
    found = document["agreement"][document["start"]]
    rho = [
        [pair["within"]["spearman"]["value"] for pair in by_metric.values()]
        for by_metric in found.values()
    ]
    if not document["metrics"]:
        axes.set_axis_off()  # a task without metrics beside its reward
        return
    values = np.array(rho, dtype=np.float64)
    signs = np.array([SIGNS[better] for better in document["metrics"].values()])
    axes.imshow(
        np.ma.masked_invalid(values * signs), cmap=colormaps["PuOr"], vmin=-1, vmax=1, aspect="auto"
    )
    for (row, column), value in np.ndenumerate(values):
        ink = "white" if abs(value * signs[column]) > 0.6 else INK
        axes.text(
            column,
            row,
            _number(None if np.isnan(value) else value),
            ha="center",
            va="center",
            color=ink,
            fontsize=9,
        )
    _rows(axes, list(found))
    arrows = {"higher": " ↑", "lower": " ↓", "none": ""}
    names = [metric + arrows[better] for metric, better in document["metrics"].items()]
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    axes.set_title(
        f"rank correlation\nwithin the groups of {document['start']}", fontsize=10, loc="left"
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2f}"


def _rows(axes: Axes, labels: list[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def score_policies(
    params: RewardAuditParams,
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
    task: Task,
    data: Any,
) -> pd.DataFrame:
    """Score the policy that training starts from, the trivial ones and the ceiling: one row per example, policy and sample.

    Raises:
        ValueError: if the split holds no example.
    """
    state = train_steps(algorithm, training, params.warmup_steps, seed=seed, task=task, data=data)
    rows = choose_rows(task.rows(data, params.split), params.rows, seed=seed)
    if not len(rows):
        raise ValueError(
            f"{task.name}.reward_audit.split must name a split with examples, got {params.split!r}; use train"
        )
    return task.audit(state.policy, data, rows, seed=seed, n_samples=params.n_samples)


def choose_rows(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return ``count`` of the rows, or all where there are fewer, drawn by the seed and sorted."""
    return np.sort(numpy_generator(seed, Stream.AUDIT_ROWS).permutation(rows)[:count])


def judge_reward(
    params: RewardAuditParams, seed: int, task: Task, samples: pd.DataFrame
) -> dict[str, Any]:
    """Return the audit's document (docs/reward_audit.md): figures per policy and component, agreement, warnings."""
    plan = task.audit_plan
    found = RewardDocument(
        read_samples(samples, plan), plan, resamples=params.resamples, seed=seed
    ).build()
    facts = {
        "task": task.name,
        "split": params.split,
        "seed": seed,
        "warmup_steps": params.warmup_steps,
    }
    return {**facts, **found, "warnings": find_warnings(found, params.warn)}


def admit_training(params: RewardAuditParams, document: Document) -> None:
    """Let a run go on to its training, or stop it before: where the reward does not ask for what is wanted.

    Raises:
        ValueError: naming what the ceiling is paid, and the parameter that lets the run go on.
    """
    found = find_no_ceiling(document)
    if found and params.no_ceiling == "stop":
        name = document["task"]
        raise ValueError(
            f"the reward of {name} must pay a policy that knows the answer more than the start before it is trained on, got: "
            f"{'; '.join(found)}; look at .venv/bin/kedro run --pipelines {name}_reward_audit and change the reward, give the "
            "decoders "
            f"more {name}.reward_audit.warmup_steps, or set {name}.reward_audit.no_ceiling: warn to train all the same"
        )


def create_gate(task: str) -> Pipeline:
    """Stop a run that trains where its audit says so; in the order of the nodes it comes before every training."""
    return Pipeline(
        [
            Node(
                admit_training,
                [f"params:{task}.reward_audit", f"{task}.reward_audit"],
                None,
                name="admit_training",
                namespace=f"{task}.audit",
            )
        ],
        tags=[task, "reward_audit"],
    )


def create_pipeline(task: str, *, control: str = "supervised") -> Pipeline:
    """Audit the reward of a task.

    Reads ``<task>.task``, ``<task>.data``, ``params:<task>.reward_audit``, ``params:<task>.training``, ``params:seed`` and
    ``params:<task>.<control>.algorithm``; writes ``<task>.reward_audit_samples``, ``.reward_audit``, ``.reward_audit_table``
    and ``.reward_audit_figure``.

    Args:
        task: prefix of the catalogue names.
        control: the arm whose training warms up; it may not learn from the reward.
    """
    params, document = f"params:{task}.reward_audit", f"{task}.reward_audit"
    shared = [
        f"params:{task}.{control}.algorithm",
        f"params:{task}.training",
        "params:seed",
        f"{task}.task",
        f"{task}.data",
    ]
    return Pipeline(
        [
            Node(
                score_policies,
                [params, *shared],
                f"{document}_samples",
                name="score_policies",
                namespace=f"{task}.audit",
            ),
            Node(
                judge_reward,
                [params, "params:seed", f"{task}.task", f"{document}_samples"],
                document,
                name="judge_reward",
                namespace=f"{task}.audit",
            ),
            Node(
                policy_table,
                document,
                f"{document}_table",
                name="tabulate_reward",
                namespace=f"{task}.audit",
            ),
            Node(
                reward_figure,
                document,
                f"{document}_figure",
                name="draw_reward",
                namespace=f"{task}.audit",
            ),
        ],
        tags=[task, "reward_audit"],
    )
