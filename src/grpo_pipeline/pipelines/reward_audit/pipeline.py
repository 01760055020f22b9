"""Wire the reward audit: samples of policies that need no training -> scores -> document, warnings and figure.

    task, data -> start (a few steps of the control) -> every policy scored (saved) -> document with warnings (saved)
                                                                                    -> table, figure (saved)

It reads rows of the training or the validation split alone. Its findings change the reward, so it may not read the test split.
"""

from typing import Any

import numpy as np
import pandas as pd
from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator
from grpo_pipeline.pipelines.params import RewardAuditParams
from grpo_pipeline.pipelines.reward_audit.document import RewardDocument
from grpo_pipeline.pipelines.reward_audit.policy_table import policy_table
from grpo_pipeline.pipelines.reward_audit.reward_figure import Document, reward_figure
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.reward_audit.warnings import find_no_ceiling, find_warnings
from grpo_pipeline.pipelines.training.short_training import train_steps
from grpo_pipeline.tasks.base import Task


def score_policies(
    params: RewardAuditParams,
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
    task: Task,
    data: Any,
) -> pd.DataFrame:
    """Score the initial policy, the trivial policies and the ceiling: a row per example, policy and sample.

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
    return {**facts, **found, "warnings": find_warnings(found)}


def admit_training(params: RewardAuditParams, document: Document) -> None:
    """Allow a run to train, or stop it if the reward does not pay its ceiling more than the start.

    Raises:
        ValueError: the reward has no such ceiling. The sentence names its reward, and the parameter that allows the run.
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
    """Wire the node that stops a training run after a bad audit; it comes before every training."""
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
