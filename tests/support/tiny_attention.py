"""A tiny attention task for tests: the committed smoke parameters, 32-pixel images, a 4 x 4 grid, k = 3 points."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from tiny import CONF, Sections, constant, merge

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.storage.weights import save_weights
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.pipelines import parameter_merge
from grpo_pipeline.pipelines.step import recipe, sampling
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.experience import Experience
from grpo_pipeline.pipelines.step.parts import dynamic_sampling, replay
from grpo_pipeline.pipelines.step.wire import ALGORITHM, fold
from grpo_pipeline.pipelines.training.export import export_model
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionData
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask

__all__ = ["CONF", "constant", "merge"]
SIZE, GRID, N_TRAIN, N_VAL, N_TEST = 32, 4, 8, 2, 5
SECTIONS = Sections("attention")
section, training_params, algorithm_params = SECTIONS.section, SECTIONS.training_params, SECTIONS.algorithm_params


def model_params(**changes: Any) -> ModelParams:
    shared = section("model", policy={"reads": {"encoder": "shared"}})
    return ModelParams.model_validate(parameter_merge.merge({"model": shared}, {"model": changes})["model"])


def make_examples(seed: int = 0) -> Examples:
    """15 cores: odd rows are cancer with a square lesion, but for row 1, whose outline is unknown; row 3 has no involvement."""
    rng = np.random.default_rng(seed)
    n = N_TRAIN + N_VAL + N_TEST
    label = np.arange(n) % 2
    images = rng.integers(20, 250, (n, SIZE, SIZE), dtype=np.uint8)
    region, bag, lesion = (np.zeros((n, SIZE, SIZE), bool) for _ in range(3))
    region[:, 2:30, 2:30] = True
    bag[:, 12:20, 0:24] = True
    for row in np.flatnonzero(label):
        corner = 4 + 8 * (row % 3)
        lesion[row, corner : corner + 9, corner : corner + 9] = row != 1
    images[lesion] //= 4
    table = pd.DataFrame(
        {
            "core_id": [f"c{i:02d}" for i in range(n)],
            "patient_id": [f"p{i // 2}" for i in range(n)],
            "center": ["a"] * n,
            "label": label,
            "involvement": np.where(label == 1, rng.uniform(0.2, 0.9, n), 0.0),
            "grade_group": 3.0 * label,
            "split": ["train"] * N_TRAIN + ["val"] * N_VAL + ["test"] * N_TEST,
        }
    )
    table.loc[3, "involvement"] = np.nan
    return Examples(table, images, region, bag, lesion, digest=f"tiny-{seed}")


def make_clinical_examples(seed: int = 0) -> Examples:
    """The same cores with three clinical columns: ``age`` all known, ``psa`` unknown in rows 2 and 9, ``setup`` always 1."""
    examples = make_examples(seed)
    rng = np.random.default_rng(seed + 100)
    n = len(examples.table)
    psa = rng.lognormal(2.0, 0.5, n)
    psa[[2, 9]] = np.nan
    table = examples.table.assign(age=rng.normal(65.0, 8.0, n), psa=psa, setup=1.0)
    return replace(examples, table=table, clinical=("age", "psa", "setup"), digest=f"tiny-clinical-{seed}")


def make_class_examples(classes: Classes, examples: Examples | None = None) -> Examples:
    """The tiny cores with classes or sets of findings: positive cores take turns in the positive ones, the others likewise."""
    examples, n = make_examples() if examples is None else examples, len(classes.names)
    values = range(2**n if classes.several else n)
    sides = [[value for value in values if classes.label_of(value) == label] for label in (0, 1)]
    of_row = [sides[label][row // 2 % len(sides[label])] for row, label in enumerate(examples.table["label"])]
    return replace(examples, table=examples.table.assign(**{classes.column: of_row}), classes=classes)


def make_task(
    examples: Examples | None = None,
    *,
    reward: dict[str, float] | None = None,
    supervised: dict[str, Any] | None = None,
    **model: Any,
) -> AttentionTask:
    return build_task(
        model_params(**model),
        RewardParams.model_validate(section("reward", **(reward or {}))),
        SupervisedParams.model_validate(section("supervised_loss", **(supervised or {}))),
        make_examples() if examples is None else examples,
    )


def make_data(examples: Examples | None = None) -> AttentionData:
    return AttentionData(make_examples() if examples is None else examples, None)


def make_batch(task: AttentionTask, rows: tuple[int, ...] = (0, 1, 2, 3)) -> AttentionBatch:
    return task.make_batch(make_data(), np.array(rows))


def make_state(
    task: Any, data: Any, algorithm: AlgorithmParams | None = None, training: TrainingParams | None = None, *, seed: int = 0
) -> TrainState:
    return build_state(algorithm or algorithm_params(), training or training_params(), seed, task, data)


def gather(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    task: Any,
    state: TrainState,
    batch: Any,
    change: Callable[[Rollouts], Rollouts] = lambda drawn: drawn,
) -> Experience:
    """Run the collect half of a step on a batch; what was drawn may be changed before it is judged."""
    context, replicated = sampling.encode_batch(task, state, batch), sampling.replicate_batch(training, task, batch)
    drawn, temperature = sampling.sample_rollouts(algorithm, training, task, state, context)
    return judge(task, algorithm, state, replicated, context, change(drawn), temperature)


DRAWING = {"replicate_batch", "encode_batch", "sample_rollouts"}


def judge(
    task: Any,
    algorithm: AlgorithmParams,
    state: TrainState,
    replicated: Any,
    context: Any,
    rollouts: Rollouts,
    temperature: float,
) -> Experience:
    """Turn given rollouts into experience: decode, reward, compare."""
    arm = Parts(tuple(part for part in Parts.of(algorithm).chosen if part not in (dynamic_sampling.PART, replay.PART)))
    judging = [node for node in recipe.collect(arm).nodes if node.short_name.lower().replace(" ", "_") not in DRAWING]
    given = {"task": task, ALGORITHM: algorithm, "state": state, "batch": replicated, "replicated": replicated}
    drawn = {"rollouts": rollouts, "rollouts_1": rollouts}  # the second name where they are scored again
    return fold(judging, given | drawn | {"context": context, "temperature": temperature})["experience"]


def shake(module: torch.nn.Module, *, seed: int = 1, scale: float = 0.3) -> None:
    """Move every trainable weight in place, so that nothing is zero or symmetric by its initialisation."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)


def weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def differing(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> list[str]:
    """Name the tensors that are not bit-identical."""
    return [name for name in a if not torch.equal(a[name], b[name])]


def export(folder: Path, kit: Any, task: Any, data: Any, *known: Any, scale: float = 0.05) -> Any:
    """Write a model as a run does, its weights far from the start; returns the policy."""
    rates = dict.fromkeys(task.parameter_groups(task.build_policy(0)), 0.1)
    training = kit.training_params(optimizer={"learning_rates": rates})
    state = build_state(kit.algorithm_params(), training, 0, task, data)
    shake(state.policy, seed=1, scale=scale)
    save_weights(folder, export_model(task, snapshot(state, progress={"position": 0, "total_steps": 1}), *known))
    return state.policy
