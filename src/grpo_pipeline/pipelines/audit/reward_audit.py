"""Can the reward be gamed, or is it dead? Asked before training, by scoring policies that need none.

    task, data -> start (a few steps of the control) -> every policy scored (saved) -> document with warnings (saved)
                                                                                    -> table, figure (saved)

Rows of the training or the validation split alone: what is found here changes the reward, so the test split may not be looked at.
"""

from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.pipelines.audit.reward_audit_params import RewardAuditParams
from grpo_pipeline.pipelines.audit.reward_document import RewardDocument
from grpo_pipeline.pipelines.audit.reward_table import policy_table
from grpo_pipeline.pipelines.audit.reward_warnings import find_warnings
from grpo_pipeline.pipelines.audit.scored_samples import read_samples
from grpo_pipeline.pipelines.audit.warm_up import train_steps
from grpo_pipeline.pipelines.reporting.reward_figure import reward_figure
from grpo_pipeline.tasks.protocol import Task


def score_policies(
    params: RewardAuditParams, algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> pd.DataFrame:
    """Score the policy that training starts from, the trivial ones and the ceiling: one row per example, policy and sample.

    Raises:
        ValueError: if the split holds no example.
    """
    state = train_steps(algorithm, training, params.warmup_steps, seed=seed, task=task, data=data)
    rows = choose_rows(task.rows(data, params.split), params.rows, seed=seed)
    if not len(rows):
        raise ValueError(f"{task.name}.reward_audit.split must name a split with examples, got {params.split!r}; use train")
    return task.audit(state.policy, data, rows, seed=seed, sets=params.sets)


def choose_rows(rows: np.ndarray, count: int, *, seed: int) -> np.ndarray:
    """Return ``count`` of the rows, or all where there are fewer, drawn by the seed and sorted."""
    return np.sort(numpy_generator(seed, Stream.AUDIT_ROWS).permutation(rows)[:count])


def judge_reward(params: RewardAuditParams, seed: int, task: Task, samples: pd.DataFrame) -> dict[str, Any]:
    """Return the audit's document (docs/reward_audit.md): figures per policy and part, agreement with the metrics, warnings."""
    plan = task.audit_plan
    found = RewardDocument(read_samples(samples, plan), plan, resamples=params.resamples, seed=seed).build()
    facts = {"task": task.name, "split": params.split, "seed": seed, "warmup_steps": params.warmup_steps}
    return {**facts, **found, "warnings": find_warnings(found, params.warn)}


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
    shared = [f"params:{task}.{control}.algorithm", f"params:{task}.training", "params:seed", f"{task}.task", f"{task}.data"]
    return Pipeline(
        [
            Node(score_policies, [params, *shared], f"{document}_samples", name="score_policies"),
            Node(
                judge_reward,
                [params, "params:seed", f"{task}.task", f"{document}_samples"],
                document,
                name="judge_reward",
            ),
            Node(policy_table, document, f"{document}_table", name="tabulate_reward"),
            Node(reward_figure, document, f"{document}_figure", name="draw_reward"),
        ],
        tags=[task, "reward_audit"],
    )
