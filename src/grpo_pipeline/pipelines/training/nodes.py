"""Nodes of one arm: build, probe, train, export, predict."""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from grpo_pipeline.core.params import AlgorithmParams, TrainingParams
from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.storage.checkpoint import Checkpoint, NoCheckpoint
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.storage.weights import ModelWeights, digest_of_tensors
from grpo_pipeline.core.training.optim import build_optimizer
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.reference import frozen_copy, load_reference
from grpo_pipeline.core.training.replay import ReplayBuffer
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Advantages, Rewards, Rollouts
from grpo_pipeline.pipelines.step.advantages import compute_advantages
from grpo_pipeline.pipelines.step.parts.credit import credit_samples
from grpo_pipeline.pipelines.step.reward import compute_rewards
from grpo_pipeline.pipelines.training.best import BestSoFar
from grpo_pipeline.pipelines.training.loader import (
    BatchLoader,
    LoadedBatch,
    make_training_batch,
    remember,
    replay_metrics,
)
from grpo_pipeline.pipelines.training.loop import (
    Film,
    StepRunner,
    check_first_ratio,
    quiet_nodes,
    rows_of_step,
    steps_per_epoch,
)
from grpo_pipeline.pipelines.training.resuming import (
    resumed,
    run_parameters,
)
from grpo_pipeline.runs.code_version import code_version
from grpo_pipeline.runs.progress import progress
from grpo_pipeline.tasks.base import HasFolders, KnowsInputs, ShowsRewards, Task
from grpo_pipeline.tasks.familiarity import INPUTS
from grpo_pipeline.testing import check_quickly

# Sampled rollouts of held-out examples with the rewards and advantages that training would have given them.


@torch.no_grad()
def shown_samples(
    task: ShowsRewards,
    policy: Any,
    data: Any,
    rows: np.ndarray,
    *,
    algorithm: AlgorithmParams,
    group_size: int,
    seed: int,
) -> pd.DataFrame:
    """Return one row per sample: what was sampled, each reward component, the reward and the arm's advantage.

    Drawn from the policy in every arm, also in one that learned from no samples, with the same noise.

    Args:
        task: the task.
        policy: the arm's trained policy.
        data: its data.
        rows: row numbers of the examples, int64 [n], few.
        algorithm: of the arm; says how rewards become advantages.
        group_size: G.
        seed: of the run.
    """
    batch = task.make_batch(data, rows)
    replicated, context = task.replicate(batch, group_size), task.encode(policy, batch)
    generator = step_generator(
        seed, stream=Stream.SHOWN_SAMPLES, device=next(policy.parameters()).device
    )
    sampled = task.sample(
        policy,
        context,
        group_size,
        temperature=task.shown_temperature,
        proposal="policy",
        generator=generator,
    )
    rewards = compute_rewards(
        task, replicated, sampled, task.decode(policy, context, sampled, replicated)
    )
    if algorithm.credits_decisions:
        rewards = credit_samples(algorithm, task, policy, context, sampled, replicated, rewards)
    advantages = compute_advantages(algorithm, task, replicated, rewards)
    return add_rewards(task.tabulate(data, batch, sampled), rewards, advantages)


def add_rewards(table: pd.DataFrame, rewards: Rewards, advantages: Advantages) -> pd.DataFrame:
    """Return the table of samples with ``reward_<part>``, ``reward``, ``advantage`` and ``group_is_tied``.

    Where decisions are credited, ``credit_<l>`` is what each has contributed, and the advantage is the mean over the decisions.
    """
    parts = {
        f"reward_{name}": part.flatten().cpu().numpy() for name, part in rewards.components.items()
    }
    of_samples = advantages.values
    if rewards.credits is not None:
        places = rewards.credits.values.flatten(0, 1).unbind(1)
        parts |= {f"credit_{place}": x.cpu().numpy() for place, x in enumerate(places)}
        of_samples = of_samples.sum(2) / rewards.credits.is_valid.sum(2).clamp(min=1)
    return table.assign(
        **parts,
        reward=rewards.total.flatten().cpu().numpy(),
        advantage=of_samples.flatten().cpu().numpy(),
        group_is_tied=advantages.is_tied.repeat_interleave(rewards.total.shape[1]).cpu().numpy(),
    )


logger = logging.getLogger(__name__)
SHOWCASE_CORES = 12
Row = dict[str, Any]


def build_state(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> TrainState:
    """Return the start of an arm; every arm of a seed starts from the same weights.

    Raises:
        ValueError: if the learning rates do not name the task's parameter groups, the task cannot do what the algorithm asks
            for, or stored groups would be replayed on prompts that have changed.
    """
    task.check_algorithm(algorithm)
    if algorithm.replay is not None and not task.repeats_prompts:
        raise ValueError(
            f"replay must be null where a row of {task.name} is not the same prompt in every batch (repeats_prompts), got a "
            "value; stored actions belong to the prompt that they were drawn for: leave replay out"
        )
    policy = task.build_policy(seed)
    groups = task.parameter_groups(policy)
    rates = training.optimizer.learning_rates
    missing = sorted(set(groups) - set(rates))
    if missing:
        raise ValueError(
            f"{task.name}.training.optimizer.learning_rates must name {sorted(groups)}, got nothing for {missing}; add them"
        )
    for unknown in sorted(set(rates) - {*groups, *task.components}):
        near = get_close_matches(unknown, task.components, n=1)
        raise ValueError(
            f"{task.name}.training.optimizer.learning_rates must name components of the task ({', '.join(task.components)}), "
            f"got {unknown!r}; {f'did you mean {near[0]}?' if near else 'remove it'}"
        )
    optimizer = build_optimizer(
        {name: (parameters, rates[name]) for name, parameters in groups.items()},
        weight_decay=training.optimizer.weight_decay,
    )
    whole = training.epochs * steps_per_epoch(len(task.rows(data, "train")), training.batch_size)
    total = min(whole, training.max_steps or whole)
    replay = (
        None
        if algorithm.replay is None
        else ReplayBuffer(algorithm.replay.capacity, algorithm.replay.max_age_steps)
    )
    return TrainState(
        policy,
        optimizer,
        _build_reference(algorithm, policy),
        step=0,
        epoch=0,
        generator_seed=seed,
        total_steps=total,
        replay=replay,
        precision=training.precision,
    )


def build_probe_state(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> TrainState:
    """Return the start of an arm for its probe, once the task has kept the cheap half of its contract with it.

    The start is not changed, nor any random stream (``testing.check_quickly``).

    Raises:
        TaskContractError: naming the method, what must hold, what was got, and the remedy.
    """
    state, shown = (
        build_state(algorithm, training, seed, task, data),
        data_of_arm(algorithm, task, data),
    )
    rows = rows_of_step(task.rows(shown, "train"), 0, batch_size=training.batch_size, seed=seed)
    with network_precision(state):
        learns = algorithm.policy_loss is not None
        check_quickly(task, shown, state.policy, rows=rows, learns=learns)
    return state


def pick_probe_batch(
    algorithm: AlgorithmParams, training: TrainingParams, seed: int, task: Task, data: Any
) -> Any:
    """Return the first training batch, or its first micro-batch: the probe runs in one piece."""
    data = data_of_arm(algorithm, task, data)
    rows = rows_of_step(task.rows(data, "train"), 0, batch_size=training.batch_size, seed=seed)[
        : training.micro_batch_size
    ]
    return make_training_batch(task, data, rows, seed=seed, step=0)


def tabulate_probe(
    task: Task, data: Any, batch: Any, rollouts: Rollouts, rewards: Rewards, advantages: Advantages
) -> pd.DataFrame:
    """Return the probe's worked example: one row per sample with its reward components, reward and advantage."""
    return add_rewards(task.tabulate(data, batch, rollouts), rewards, advantages)


def train(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    resume: Literal["never", "auto"],
    task: Task,
    data: Any,
    state: TrainState,
    resume_from: Checkpoint | NoCheckpoint,
    probe_metrics: Mapping[str, Any],
    sections: Mapping[str, str] | None = None,
) -> Iterator[tuple[list[Row], Checkpoint | Literal[False]]]:
    """Train one arm; yields the metric rows since the last yield, and now and then a checkpoint (else False).

    Args:
        algorithm: what the arm optimises.
        training: the loop.
        resume: "auto" goes on from ``resume_from`` when there is one, "never" starts anew.
        task: the task.
        data: its data.
        state: the start; its modules are trained in place.
        resume_from: the arm's last checkpoint.
        probe_metrics: of the probe, which so comes before the long part; its ratio must be 1.
        sections: "algorithm", "training" and "task" -> their names in the configuration, for what is said about them.

    Raises:
        ValueError: if ``resume`` is unknown, or the first ratio of a batch is not 1.
        CheckpointError: if the checkpoint belongs to other parameters.
    """
    check_first_ratio(probe_metrics or {}, algorithm, training, task, step=0)
    sections = sections or {name: f"{task.name}.{name}" for name in ("algorithm", "training")} | {
        "task": task.name
    }
    parameters = run_parameters(algorithm, training, task, data, seed=state.generator_seed)
    # A checkpoint names a reference that never moves instead of holding it.
    frozen_reference = None
    if state.reference is not None and algorithm.reference.update == "frozen":
        frozen_reference = digest_of_tensors(state.reference.state_dict())
    state = resumed(
        state,
        resume_from,
        resume=resume,
        parameters=parameters,
        sections=sections,
        frozen_reference=frozen_reference,
    )
    whole = training.epochs * steps_per_epoch(len(task.rows(data, "train")), training.batch_size)
    if state.total_steps < whole:
        sentence = "%s.max_steps = %d: training ends at step %d of the %d steps of %d epochs"
        numbers = (training.max_steps, state.total_steps, whole, training.epochs)
        logger.info(sentence, sections["training"], *numbers)
    goes_on = state.step > 0 and isinstance(resume_from, Checkpoint)
    before = resume_from.frames if goes_on and isinstance(resume_from, Checkpoint) else {}
    film = Film(task, data, training, state, before)
    best = BestSoFar(task, training, resume_from if goes_on else NoCheckpoint(""))
    data = data_of_arm(algorithm, task, data)
    if state.reference is not None and algorithm.reference.update == "frozen":
        with network_precision(state):
            data = task.with_reference(data, state.reference)
    loop = _Loop(task, data, algorithm, training)
    pending: list[Row] = []
    late = 0.0
    batches = BatchLoader(task, data, algorithm, training, state)
    # <task>.<arm or stage>.algorithm; two arms may have one algorithm.
    arm = sections["algorithm"].split(".")[1:-1] or [algorithm.name]
    with (
        quiet_nodes(),
        progress(state.total_steps - state.step, f"train {task.name}.{arm[0]}") as shown,
        batches,
    ):
        # A generator node must yield at least once, also when a resumed arm has nothing left to do.
        yield [], False
        while state.step < state.total_steps:
            state, rows = loop.step(state, batches.take(state))
            pending += rows
            film.take(state)
            best.take(state, rows)
            # The reward, or the loss of an arm whose samples nobody scored.
            values = (
                {"reward": rows[0]["reward/mean"]}
                if np.isfinite(rows[0]["reward/mean"])
                else {"loss": rows[0]["supervised/loss"]}
            )
            late += rows[0].get("reward/late_calls", 0.0)
            shown.update(1, **values, **({"reward calls out of time": late} if late else {}))
            saves = (
                state.step == state.total_steps or state.step % training.checkpoint_every_steps == 0
            )
            if saves or state.step % training.log_every_steps == 0:
                yield (
                    pending,
                    loop.checkpoint(state, parameters, frozen_reference, film.frames, best)
                    if saves
                    else False,
                )
                pending = []


def data_of_arm(algorithm: AlgorithmParams, task: Task, data: Any) -> Any:
    """Return the data that an arm may see: the truth is among them for ``proposal: oracle`` alone."""
    return task.with_oracle(data) if algorithm.proposal == "oracle" else data


class _Loop:
    """One arm's loop over the batches: what does not change from step to step."""

    def __init__(
        self, task: Task, data: Any, algorithm: AlgorithmParams, training: TrainingParams
    ) -> None:
        self._task, self._data, self._training = task, data, training
        self._runner = StepRunner(task, algorithm, training)
        self._per_epoch = steps_per_epoch(len(task.rows(data, "train")), training.batch_size)

    def step(self, state: TrainState, loaded: LoadedBatch) -> tuple[TrainState, list[Row]]:
        """Train on the step's batch; returns the next state and its metric rows, a validation row now and then."""
        step, epoch = state.step, state.step // self._per_epoch
        done = self._runner.run(state, loaded.batch, loaded.replayed)
        remember(state, done.experience, loaded.rows, loaded.replayed)
        metrics = done.metrics | replay_metrics(step, done.experience, loaded.replayed)
        measured: list[Row] = [{"step": step, "epoch": epoch, "split": "train", **metrics}]
        state = replace(done.state, epoch=done.state.step // self._per_epoch)
        if (
            state.step == state.total_steps
            or state.step % (self._per_epoch * self._training.validate_every_epochs) == 0
        ):
            found = _validate(self._task, self._data, state, self._training)
            measured.append({"step": step, "epoch": epoch, "split": "val", **found})
        return state, measured

    def checkpoint(
        self,
        state: TrainState,
        parameters: Mapping[str, Any],
        frozen_reference: str | None,
        frames: Mapping[str, Tensor],
        best: BestSoFar,
    ) -> Checkpoint:
        """Copy the state with the position in the data order, and the best weights so far."""
        position = {"position": state.step % self._per_epoch, "total_steps": state.total_steps}
        code = code_version()
        return snapshot(
            state,
            progress={**position, **best.scores},
            parameters=parameters,
            code=code,
            frozen_reference=frozen_reference,
            frames=frames,
            best=best.stored(state),
        )


def develop(checkpoint: Checkpoint | NoCheckpoint) -> dict[str, np.ndarray]:
    """Return the frames of a training, stacked: ``step`` int64 [f] and each array [f, ...]; nothing where none were taken."""
    frames = _trained(checkpoint).frames
    steps = sorted({key.partition("/")[0] for key in frames})
    names = sorted({key.partition("/")[2] for key in frames})
    if not steps:
        return {}
    stacked = {
        name: np.stack([frames[f"{step}/{name}"].numpy() for step in steps]) for name in names
    }
    return {"step": np.array([int(step) for step in steps]), **stacked}


def calibrate(
    seed: int, task: Task, data: Any, checkpoint: Checkpoint | NoCheckpoint
) -> dict[str, Any]:
    """Fit on the validation split how the final weights' scores become frequencies."""
    policy = task.build_policy(0)
    policy.load_state_dict(dict(_trained(checkpoint).policy))
    return task.calibrate(policy, data, task.rows(data, "val"), seed=seed)


def export_model(
    task: Task,
    checkpoint: Checkpoint | NoCheckpoint,
    calibration: Mapping[str, Any] | None = None,
    data: Any = None,
) -> ModelWeights:
    """Return the final weights with what is needed to build the policy again and, with a calibration, to use it alone.

    With the data, and of a task that knows them, the model also says what its training inputs looked like.
    """
    trained = _trained(checkpoint)
    policy = task.build_policy(0)
    policy.load_state_dict(dict(trained.policy))
    counters = {name: one for name, one in trained.progress.items() if isinstance(one, int)}
    config = task.describe(policy) | {"training": counters}
    fitted: dict[str, Any] = {} if calibration is None else {"calibration": dict(calibration)}
    if (score := trained.progress.get("validated", {})).get("step") == counters["step"]:
        fitted["validation"] = dict(score)
    beside: dict[str, Mapping[str, Tensor]] = {}
    if data is not None and isinstance(task, KnowsInputs):
        familiarity = task.describe_inputs(policy, data)
        fitted[INPUTS], beside[INPUTS] = (
            familiarity.told.model_dump(mode="json"),
            familiarity.tensors(),
        )
    return ModelWeights(
        tensors=trained.policy,
        config=config | fitted,
        beside=beside,
        folders=_folders(task, policy),
    )


def export_best(
    seed: int, task: Task, data: Any, checkpoint: Checkpoint | NoCheckpoint, model: ModelWeights
) -> ModelWeights:
    """Return the weights of the best validation, calibrated by themselves; where they are the last ones, their model."""
    last = _trained(checkpoint)
    best = at_best(last)
    if best.progress["step"] == last.progress["step"]:
        built = task.build_policy(0)
        built.load_state_dict(dict(model.tensors))
        return replace(model, folders=_folders(task, built))
    return export_model(task, best, calibrate(seed, task, data, best), data)


def _folders(task: Task, policy: Any) -> Mapping[str, Any]:
    return task.model_folders(policy) if isinstance(task, HasFolders) else {}


def at_best(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint as it was at its best validation, as far as a model is made of it."""
    if (score := checkpoint.progress.get("best")) is None:
        return checkpoint
    progress = {**checkpoint.progress, "step": score["step"], "validated": score}
    return replace(checkpoint, policy=checkpoint.best or checkpoint.policy, progress=progress)


def _trained(checkpoint: Checkpoint | NoCheckpoint) -> Checkpoint:
    """Return a checkpoint as the arm's model is made of it: the last weights, or with ``keep: best`` the best ones."""
    if isinstance(checkpoint, NoCheckpoint):
        raise ValueError(
            f"a checkpoint must be in {checkpoint.folder}, got nothing there; train the arm first"
        )
    return at_best(checkpoint) if checkpoint.progress.get("keep") == "best" else checkpoint


def predict(
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
    task: Task,
    data: Any,
    model: ModelWeights,
    split: str = "test",
) -> tuple[pd.DataFrame, pd.DataFrame, Mapping[str, np.ndarray]]:
    """Score the held-out split with the final weights: prediction rows, sampled rollouts, and a few examples to look at."""
    policy = task.build_policy(0)
    policy.load_state_dict(dict(model.tensors))
    rows = task.rows(data, split)
    few = np.sort(numpy_generator(seed, Stream.SHOWCASE_ROWS).permutation(rows)[:SHOWCASE_CORES])
    predictions = task.evaluate(policy, data, rows, seed=seed, n_samples=training.group_size)
    if isinstance(task, ShowsRewards):
        rollouts = shown_samples(
            task, policy, data, few, algorithm=algorithm, group_size=training.group_size, seed=seed
        )
    else:
        shown = data_of_arm(algorithm, task, data)
        rollouts = _sample_table(
            task, policy, shown, rows, algorithm=algorithm, training=training, seed=seed
        )
    return predictions, rollouts, task.showcase(policy, data, few, seed=seed)


def _build_reference(algorithm: AlgorithmParams, policy: nn.Module) -> nn.Module | None:
    """Return the policy that the KL is measured to: a copy of the start, or weights of the user's."""
    if not algorithm.pays_kl:
        return None
    reference = frozen_copy(policy)
    return (
        reference
        if algorithm.reference.path is None
        else load_reference(Path(algorithm.reference.path), reference)
    )


def _validate(
    task: Task, data: Any, state: TrainState, training: TrainingParams
) -> dict[str, float]:
    return task.validate(
        state.policy,
        data,
        task.rows(data, "val"),
        seed=state.generator_seed,
        n_samples=training.validation_samples,
    )


@torch.no_grad()
def _sample_table(
    task: Task,
    policy: Any,
    data: Any,
    rows: np.ndarray,
    *,
    algorithm: AlgorithmParams,
    training: TrainingParams,
    seed: int,
) -> pd.DataFrame:
    frames = []
    for number, start in enumerate(range(0, len(rows), 64)):
        batch = task.make_batch(data, rows[start : start + 64])
        context = task.encode(policy, batch)
        generator = step_generator(
            seed, number, stream=Stream.SAMPLE_TABLE, device=next(policy.parameters()).device
        )
        rollouts = task.sample(
            policy,
            context,
            training.group_size,
            temperature=1.0,
            proposal=algorithm.proposal,
            generator=generator,
        )
        frames.append(task.tabulate(data, batch, rollouts))
    return pd.concat(frames, ignore_index=True)
