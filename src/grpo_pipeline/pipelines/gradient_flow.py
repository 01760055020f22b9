"""Audit the gradient flow: measure on one batch which components each loss term trains, and compare with the intention.

    warm_up -> one batch -> the loop body up to the loss -> norms -> table (saved) -> figure (saved) -> stop if anything is odd

The batch runs through the nodes of ``pipelines.step``, in the first update epoch, which has the supervised term and the encoder's
graph. A few steps of training come first. An untrained policy may be exactly uniform and equal to its reference, where several
gradients are 0 in correct code, too.
"""

from collections.abc import Collection, Mapping
from typing import Any, cast

import pandas as pd
from kedro.pipeline import Node, Pipeline
from matplotlib.figure import Figure
from torch import Tensor

from grpo_pipeline.core.diagnostics.gradient_flow import agrees, gradient_norms, reward_norms
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines.flow_heatmap import REWARD, norm_heatmap
from grpo_pipeline.pipelines.params import Expectation, GradientFlowParams, Term
from grpo_pipeline.pipelines.step import recipe
from grpo_pipeline.pipelines.step.arm_parts import ALL, Parts
from grpo_pipeline.pipelines.step.experience import LossTerms
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING
from grpo_pipeline.pipelines.training.pipeline import shared_inputs, shared_training
from grpo_pipeline.pipelines.training.short_training import pick_batch, train_steps
from grpo_pipeline.tasks.base import Task

FLOW = "params:gradient_flow"


class GradientFlowError(RuntimeError):
    """A loss term has a forbidden gradient or lacks a required one, or a reward carries a gradient."""


class DetachedRewards:
    """A task with the rewards of another task, detached from the graph, so that the audit can finish."""

    def __init__(self, task: Task) -> None:
        self._task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)

    def reward(
        self, batch: Any, rollouts: Rollouts, outcomes: Any
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the task's reward components, detached, and their weights."""
        parts, weights = self._task.reward(batch, rollouts, outcomes)
        return {name: part.detach() for name, part in parts.items()}, weights


def detach_rewards(task: Task) -> Task:
    """Return the task with its rewards detached; ``measure_rewards`` asks the task itself."""
    return cast(Task, DetachedRewards(task))


def warm_up(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    params: GradientFlowParams,
    seed: int,
    task: Task,
    data: Any,
) -> TrainState:
    """Build the arm's start and train it for ``warmup_steps`` batches."""
    return train_steps(algorithm, training, params.warmup_steps, seed=seed, task=task, data=data)


def pick_audited_batch(
    algorithm: AlgorithmParams, training: TrainingParams, task: Task, data: Any, state: TrainState
) -> Any:
    """Pick the batch of the state's step, or its first micro-batch: the audit does not split batches."""
    return pick_batch(algorithm, training, task, data, state, at_most=training.micro_batch_size)


def measure_terms(
    algorithm: AlgorithmParams, task: Task, state: TrainState, losses: LossTerms
) -> pd.DataFrame:
    """Return the norm of every weighted term's gradient on every component: columns ``term, component, grad_norm``.

    A term that the arm never weighs is left out.
    """
    terms = {
        name: term
        for name, term in losses.terms.items()
        if losses.weights[name] or name in algorithm.losses.weights
    }
    norms = gradient_norms(terms, losses.weights, task.parameter_groups(state.policy))
    return _as_table(norms)


def measure_rewards(task: Task, batch: Any, rollouts: Rollouts, outcomes: Any) -> pd.DataFrame:
    """Tabulate a row per reward component: norm 0.0 where it carries no gradient, NaN where it is attached to a graph."""
    parts, _ = task.reward(batch, rollouts, outcomes)
    return _as_table({REWARD: reward_norms(parts)})


def judge_flow(
    params: GradientFlowParams, training: TrainingParams, terms: pd.DataFrame, rewards: pd.DataFrame
) -> pd.DataFrame:
    """Join both tables, and compare each norm with its expectation.

    Returns:
        Columns ``term, component, grad_norm, expected, agrees``; a row per term and component, then a row per reward component.

    Raises:
        ValueError: if an expected component has no learning rate. A frozen component has a rate, and is left out.
    """
    _check_components(params.expected, {*training.optimizer.learning_rates, *terms["component"]})
    table = pd.concat([terms, rewards], ignore_index=True)
    named = {
        (term, component): value
        for term, group in params.expected.items()
        for component, value in group.items()
    }
    pairs = zip(table["term"], table["component"], strict=True)
    table["expected"] = [
        "none" if term == REWARD else named.get((term, component), "any")
        for term, component in pairs
    ]
    table["agrees"] = [
        agrees(norm, value)
        for norm, value in zip(table["grad_norm"], table["expected"], strict=True)
    ]
    return table


def draw_flow(table: pd.DataFrame) -> Figure:
    """Draw the table as a heatmap."""
    return norm_heatmap(table)


def require_flow(table: pd.DataFrame, figure: bytes) -> None:
    """Stop if any norm is unexpected. The argument ``figure`` only ensures that table and figure are saved first.

    Raises:
        GradientFlowError: naming each term and component that disagrees.
    """
    del figure
    odd = [
        (
            f"a graph in reward component {row.component}"
            if row.term == REWARD
            else f"{row.term} -> {row.component} {row.grad_norm:.3g} where {row.expected} is expected"
        )
        for row in table[~table["agrees"]].itertuples(index=False)
    ]
    if odd:
        raise GradientFlowError(
            f"each loss term must teach what gradient_flow.expected says, got {'; '.join(odd)}; add or remove a detach in the "
            "task, raise gradient_flow.warmup_steps if the policy is still at its start, or correct the expectation"
        )


def create_pipeline(
    task: str, arm: str, *, own: Collection[str] = (), parts: Parts = ALL
) -> Pipeline:
    """Wire the audit of an arm under the namespace ``<task>.<arm>``.

    Reads ``<task>.task``, ``<task>.data``, ``params:<task>.training``, ``params:<task>.gradient_flow``, ``params:seed`` and
    ``params:<task>.<arm>.algorithm``; writes ``<task>.<arm>.gradient_flow`` and ``<task>.<arm>.gradient_flow_figure``. ``own``
    names the arm's own sections, as in its training; ``parts`` are those of its step.
    """
    return Pipeline(
        _template(parts),
        namespace=f"{task}.{arm}",
        inputs=shared_inputs(task, own),
        parameters={
            **shared_training(task, own),
            FLOW: f"params:{task}.gradient_flow",
            "params:seed": "params:seed",
        },
        tags=[task, arm, "gradient_flow"],
    )


def _template(parts: Parts) -> Pipeline:
    """Wire task and data -> table, figure and summary; inputs and outputs of the loop body are named ``audited_…``."""
    into, out = ("task", "state", "batch"), ("losses", "replicated", "rollouts", "outcomes")
    inner = {name: f"audited_{name}" for name in (*into, *out, "term_norms", "reward_norms")}
    body = Pipeline(
        recipe.whole(parts).to_outputs("losses"),
        namespace="gradient_flow",
        inputs={name: inner[name] for name in into},
        outputs={name: inner[name] for name in out},
        parameters={ALGORITHM: ALGORITHM, TRAINING: TRAINING},
    )
    start = [
        Node(detach_rewards, "task", inner["task"], name="detach_rewards"),
        Node(
            warm_up,
            [ALGORITHM, TRAINING, FLOW, "params:seed", inner["task"], "data"],
            inner["state"],
            name="warm_up",
        ),
        Node(
            pick_audited_batch,
            [ALGORITHM, TRAINING, "task", "data", inner["state"]],
            inner["batch"],
            name="pick_batch",
        ),
    ]
    rest = [
        Node(
            measure_terms,
            [ALGORITHM, "task", inner["state"], inner["losses"]],
            inner["term_norms"],
            name="measure_terms",
        ),
        Node(
            measure_rewards,
            ["task", inner["replicated"], inner["rollouts"], inner["outcomes"]],
            inner["reward_norms"],
            name="measure_rewards",
        ),
        Node(
            judge_flow,
            [FLOW, TRAINING, inner["term_norms"], inner["reward_norms"]],
            "gradient_flow",
            name="judge_flow",
        ),
        Node(draw_flow, "gradient_flow", "gradient_flow_figure", name="draw_flow"),
        Node(require_flow, ["gradient_flow", "gradient_flow_figure"], None, name="require_flow"),
    ]
    return Pipeline([*start, *rest]) + body


def _as_table(norms: Mapping[str, Mapping[str, float]]) -> pd.DataFrame:
    rows = [
        (term, component, norm)
        for term, group in norms.items()
        for component, norm in group.items()
    ]
    return pd.DataFrame(rows, columns=["term", "component", "grad_norm"])


def _check_components(expected: Mapping[Term, Mapping[str, Expectation]], known: set[str]) -> None:
    for term, group in expected.items():
        for component in group:
            if component not in known:
                raise ValueError(
                    f"gradient_flow.expected.{term} must name components of the task, {sorted(known)}, got {component!r}; "
                    "correct it"
                )
