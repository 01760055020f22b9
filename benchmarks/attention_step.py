"""Measure what a training step of the attention task costs: ratios of steps that are measured side by side.

    python benchmarks/attention_step.py                      (sizes of conf/base, group of 4; some minutes)
    python benchmarks/attention_step.py --smoke --repeats 2  (sizes of conf/smoke; seconds)
    python benchmarks/attention_step.py --size vit_b --image-size 1024 --batch-size 4 --device cuda --precision bf16

One process, one model, one batch; the steps take turns and the order turns with each round, so that a machine that slows down
slows all of them. A figure is the median over rounds of the ratio within a round, with the smallest and the largest.

`supervised` is a step of the control. `grpo once` is ours: features of the batch reused by the later update epochs; `every_epoch`
encodes again in each. `naive` is the loop of public versions: a rollout of the whole model per sample, then in every update
epoch the whole model again for every sample. `floor` is one pass forward and backward through the encoder, with the policy's
filter bank, and one through the decoders for the G samples, with the supervised loss, and nothing else; `SAM alone` leaves the
filter bank out, too, and `policy passes` adds what no GRPO step can do without: the policy network once to sample and K times
forward and backward. All see the same stored logits of the reference policy.
`frozen` has a frozen encoder: encoded in each step, or its features taken from the cache; their ratio is that of an epoch. With
`--size` only the steps are measured: `tiny` has the sizes of conf/smoke, `vit_b` is SAM's image encoder with random weights.
The gradient report and checkpoints, every 50 steps by default, are priced by the step they are spread over.
"""

import argparse
import io
import json
import logging
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import pandas as pd
import torch
import yaml
from kedro.io import DataCatalog
from kedro.pipeline import Pipeline
from measuring import machine
from measuring.memory import peak_since_mark_mb, set_mark
from measuring.spread import Spread, ratio
from transformers import SamConfig, SamModel

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.objective.surrogates.clipped import Clipped
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.policy_gradient.hybrid_loss import hybrid_loss
from grpo_pipeline.core.policy_gradient.kl import categorical_kl
from grpo_pipeline.core.policy_gradient.policy_loss import policy_loss
from grpo_pipeline.core.policy_gradient.value_loss import value_loss
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.schedules import value_at
from grpo_pipeline.core.storage.snapshot import snapshot
from grpo_pipeline.core.training.optim import advance
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rewards, Rollouts
from grpo_pipeline.datasets.checkpoint import CheckpointDataset
from grpo_pipeline.datasets.metric_stream import MetricStreamDataset
from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.pipelines.step import advantages, recipe
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.parts import replay
from grpo_pipeline.pipelines.step.wire import ALGORITHM, TRAINING
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.pipelines.training.step_metrics import merge_metrics
from grpo_pipeline.runs.loop_displays import Bar
from grpo_pipeline.tasks.attention.batch import AttentionBatch, AttentionContext, AttentionData
from grpo_pipeline.tasks.attention.build import build_task
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.data.phantom.generate import generate_cores
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams
from grpo_pipeline.tasks.attention.frozen_features import FeatureSet, encode_examples
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.attention.task import AttentionTask
from grpo_pipeline.tracking.runs import PARENT, Runs

ROOT = Path(__file__).resolve().parents[1]
OVERRIDES = ("batch_size", "micro_batch_size", "device", "precision")
WANTED = {
    "naive / ours": (">=", 8.0),
    "ours / floor": ("<=", 1.2),
    "overhead, all of it (%)": ("<=", 5.0),
}
WANTED_OF_VIT_B = {
    "naive / ours": (">=", 15.0),
    "grpo / supervised": ("<=", 1.15),
    "frozen, encoded / cached": (">=", 20.0),
}


@dataclass(frozen=True)
class Setting:
    """Hold what all steps share: the task, one batch of it, and the parameters of both arms."""

    task: AttentionTask
    data: AttentionData
    batch: AttentionBatch
    training: TrainingParams
    grpo: AlgorithmParams
    supervised: AlgorithmParams
    seed: int
    frozen: "Setting | None" = None

    def start(self, algorithm: AlgorithmParams) -> TrainState:
        """Return a fresh state of an arm; past the warm-up, so that every term counts."""
        state = build_state(algorithm, self.training, self.seed, self.task, self.data)
        warmup_steps = self.grpo.losses.weights["policy"].warmup_steps
        return replace(state, step=warmup_steps, total_steps=100_000)


def read_parameters(*environments: str) -> dict[str, Any]:
    """Return the section ``attention`` of the named environments, later ones over earlier ones."""
    merged: dict[str, Any] = {}
    for file in (
        file
        for env in environments
        for file in sorted((ROOT / "conf" / env / "attention").glob("parameters*.yml"))
    ):
        merged = merge(merged, yaml.safe_load(file.read_text(encoding="utf-8")))
    return merged["attention"]


def build_setting(parameters: Mapping[str, Any], *, group_size: int, seed: int) -> Setting:
    """Generate one batch of phantom cores and put the task together, also with a frozen encoder and its features."""
    training = TrainingParams(
        **parameters["training"] | {"group_size": group_size, "gradient_report_every_steps": 10**9}
    )
    model, reward, loss = (parameters[name] for name in ("model", "reward", "supervised_loss"))
    examples = draw_examples(
        PhantomParams(**parameters["phantom"] | {"seed": seed}), training.batch_size
    )
    build = partial(
        build_task,
        rewards=RewardParams(**reward),
        supervised=SupervisedParams(**loss),
        examples=examples,
    )
    task, frozen = (
        build(
            ModelParams(**model | {"encoder": {**model["encoder"], "tuning": tuning}}),
            execution=training,
        )
        for tuning in (None, {"kind": "frozen"})
    )
    grpo, supervised = (
        AlgorithmParams(**parameters[arm]["algorithm"]) for arm in ("grpo", "supervised")
    )
    stored = encode_examples(
        frozen, frozen.build_policy(seed), examples, FeatureSet(key="", values=None)
    ).values

    def setting(task: AttentionTask, data: AttentionData, other: Setting | None) -> Setting:
        data = task.with_reference(data, task.build_policy(seed))
        return Setting(
            task,
            data,
            task.make_batch(data, examples.rows("train")),
            training,
            grpo,
            supervised,
            seed,
            other,
        )

    return setting(
        task, AttentionData(examples, None), setting(frozen, AttentionData(examples, stored), None)
    )


def draw_examples(params: PhantomParams, n: int) -> Examples:
    """Return the first n generated cores, all of the training split."""
    cores = [core for core, _ in zip(generate_cores(params), range(n), strict=False)]
    table = pd.DataFrame([core.row for core in cores]).assign(split="train")
    images, region, bag, lesion = (
        np.stack([getattr(c, name) for c in cores])
        for name in ("image", "region", "needle", "lesion")
    )
    return Examples(table, images, region, bag, lesion, digest="benchmark")


def naive_rollouts(setting: Setting, state: TrainState) -> tuple[Rollouts, Rewards]:
    """Run the whole model once per sample, without gradient: encoder, policy, decoders."""
    task, batch, policy = setting.task, setting.batch, state.policy
    generator = step_generator(setting.seed, state.step, device=task.device)
    drawn, parts = [], []
    with torch.no_grad():
        for _ in range(setting.training.group_size):
            with network_precision(state):
                context = task.encode(policy, batch)
                one = task.sample(
                    policy, context, 1, temperature=1.0, proposal="policy", generator=generator
                )
                outcomes = task.decode(policy, context, one, batch)
            found, weights = task.reward(task.replicate(batch, 1), one, outcomes)
            drawn.append(one)
            parts.append(found)
    actions, logprobs, is_valid = (
        torch.cat([getattr(one, name) for one in drawn], 1)
        for name in ("actions", "logprobs", "is_valid")
    )
    named = {name: torch.cat([found[name] for found in parts], 1) for name in parts[0]}
    return Rollouts(actions, logprobs, is_valid), combine_rewards(named, weights)


def naive_epoch(setting: Setting, state: TrainState, rollouts: Rollouts, rewards: Rewards) -> None:
    """Back-propagate one update epoch: the whole model again for every sample; gradients add up in ``.grad``."""
    task, policy, group_size = setting.task, state.policy, setting.training.group_size
    batch, params = task.replicate(setting.batch, 1), setting.grpo.losses.policy
    assert isinstance(params, Clipped)
    compared = advantages.compute_advantages(
        setting.grpo, task, batch, rewards, rollouts
    ).values.float()
    returns = rewards.total.mean(1).float()
    weights = {
        name: value_at(weight, state.step, state.total_steps)
        for name, weight in setting.grpo.losses.weights.items()
    }
    for g in range(group_size):
        one = Rollouts(
            *(
                part[:, g : g + 1]
                for part in (rollouts.actions, rollouts.logprobs, rollouts.is_valid)
            )
        )
        with network_precision(state):
            context = task.encode(policy, setting.batch)
            scores = task.score(policy, context, one, temperature=1.0)
            outcomes = task.decode(policy, context, one, batch)
            reference = task.score_reference(policy, batch, one, temperature=1.0).log_probs_full
        terms = {
            "supervised": task.supervised_loss(policy, context, batch, outcomes),
            "policy": policy_loss(
                scores.logprobs, one.logprobs, compared[:, g : g + 1], one.is_valid,
                params,
            ),
            "entropy": -scores.entropy.mean(),
            "value": value_loss(scores.values, returns),
            "kl": categorical_kl(scores.log_probs_full, reference, reference > -torch.inf).mean(),
        }  # fmt: skip
        (hybrid_loss(terms, weights) / group_size).backward()


def naive_step(setting: Setting, state: TrainState) -> None:
    """Take the step of public versions: G rollouts, then K epochs over G samples, the whole model each time."""
    rollouts, rewards = naive_rollouts(setting, state)
    limit = setting.training.optimizer.max_grad_norm
    for _ in range(setting.grpo.update_epochs):
        state.optimizer.zero_grad()
        naive_epoch(setting, state, rollouts, rewards)
        for group in state.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], limit or float("inf"))
        state.optimizer.step()


def floor_step(setting: Setting, state: TrainState, rollouts: Rollouts, *, texture: bool) -> None:
    """Run the encoder and the decoders of the G samples once forward and once backward.

    With ``texture`` the filter bank counts as part of the encoder: its description of the cells, forward and backward.
    """
    task, batch = setting.task, setting.task.replicate(setting.batch, setting.training.group_size)
    state.optimizer.zero_grad()
    with network_precision(state):
        if texture:
            context = task.encode(state.policy, setting.batch)
            unused = 0.0 * context.texture.sum()
        else:
            features = state.policy.encode(setting.batch)
            context, unused = (
                AttentionContext(features, features, setting.batch.images, setting.batch.cells),
                0.0,
            )
        outcomes = task.decode(state.policy, context, rollouts, batch)
    (task.supervised_loss(state.policy, context, batch, outcomes) + unused).backward()


def bound_step(
    setting: Setting, state: TrainState, rollouts: Rollouts, context: AttentionContext
) -> None:
    """Run the floor and the passes of the policy network that GRPO cannot do without: one to sample, K forward and backward."""
    floor_step(setting, state, rollouts, texture=True)
    with torch.no_grad(), network_precision(state):
        state.policy.policy(context.features, context.texture)
    for _ in range(setting.grpo.update_epochs):
        with network_precision(state):
            logits, values = state.policy.policy(context.features, context.texture)
        (logits.sum() + values.sum()).backward()


def plain_step(setting: Setting, state: TrainState) -> tuple[TrainState, dict[str, float]]:
    """Take our step by calling the functions of its tables one after the other, without Kedro."""
    training, algorithm, arm = setting.training, setting.grpo, Parts.of(setting.grpo)
    given = {"task": setting.task, ALGORITHM: algorithm, TRAINING: training, "batch": setting.batch}
    given["replayed"] = replay.nothing_replayed()
    experience = plain_fold(recipe.collect(arm), given | {"state": state})["experience"]
    measured = []
    for epoch in range(algorithm.update_epochs):
        values = given | {"experience": experience, "update_epoch": epoch, "state": state}
        values = plain_fold(recipe.learn(arm), values)
        values = plain_fold(recipe.move(arm), values)
        state = values["next_state"]
        measured.append(values["step_metrics"])
    return advance(state), merge_metrics(measured)


def plain_fold(table: Pipeline, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with what the functions of a table make of them."""
    for node in table.nodes:
        made = node.func(**{argument: values[name] for argument, name in node._inputs.items()})
        names = node.outputs
        values = values | dict(zip(names, made if len(names) > 1 else [made], strict=True))
    return values


def make_steps(setting: Setting) -> dict[str, Callable[[], Any]]:
    """Return the steps to be compared; each has a state of its own from the same start, and stays at its step number."""
    again = setting.training.model_copy(update={"encoder_refresh": "every_epoch"})
    report = setting.training.model_copy(update={"gradient_report_every_steps": 1})
    folds = {
        "supervised": (
            StepRunner(setting.task, setting.supervised, setting.training),
            setting.start(setting.supervised),
        ),
        "grpo once": (
            StepRunner(setting.task, setting.grpo, setting.training),
            setting.start(setting.grpo),
        ),
        "grpo every_epoch": (
            StepRunner(setting.task, setting.grpo, again),
            setting.start(setting.grpo),
        ),
        "grpo with report": (
            StepRunner(setting.task, setting.grpo, report),
            setting.start(setting.grpo),
        ),
    }
    steps = {
        name: (lambda runner=runner, state=state: runner(state, setting.batch))
        for name, (runner, state) in folds.items()
    }
    steps |= _frozen_steps(setting)
    naive, bottom = setting.start(setting.grpo), setting.start(setting.grpo)
    rollouts, _ = naive_rollouts(setting, bottom)
    with network_precision(bottom):
        context = setting.task.detach(setting.task.encode(bottom.policy, setting.batch))
    return steps | {
        "naive": lambda: naive_step(setting, naive),
        "floor": lambda: floor_step(setting, bottom, rollouts, texture=True),
        "floor + policy passes": lambda: bound_step(setting, bottom, rollouts, context),
        "floor, SAM alone": lambda: floor_step(setting, bottom, rollouts, texture=False),
    }


def _frozen_steps(setting: Setting) -> dict[str, Callable[[], Any]]:
    """Return a step of a frozen encoder that encodes its batch, and one that reads the features of the cache."""
    frozen = setting.frozen
    if frozen is None:
        return {}
    runner = StepRunner(frozen.task, frozen.grpo, frozen.training)
    bare = frozen.task.make_batch(
        replace(frozen.data, features=None), frozen.data.examples.rows("train")
    )
    batches = {"frozen, encoded": bare, "frozen, cached": frozen.batch}
    states = {name: frozen.start(frozen.grpo) for name in batches}
    return {
        name: (lambda name=name, batch=batch: runner(states[name], batch))
        for name, batch in batches.items()
    }


def count_encoder_passes(
    setting: Setting, steps: Mapping[str, Callable[[], Any]]
) -> dict[str, int]:
    """Return how many batches each step sends through the image encoder."""
    from transformers.models.sam.modeling_sam import SamVisionEncoder

    counts = dict.fromkeys(steps, 0)
    original = SamVisionEncoder.forward
    for name, step in steps.items():

        def counted(*args: Any, name: str = name, **kwargs: Any) -> Any:
            counts[name] += 1
            return original(*args, **kwargs)

        SamVisionEncoder.forward = counted
        try:
            step()
        finally:
            SamVisionEncoder.forward = original
    return counts


def take_turns(steps: Mapping[str, Callable[[], Any]], *, rounds: int) -> dict[str, list[float]]:
    """Time every step once per round, in an order that turns, after one round that does not count; seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for number in range(-1, rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            taken = timed(steps[name])
            if number >= 0:
                seconds[name].append(taken)
    return seconds


def timed(step: Callable[[], Any]) -> float:
    """Return the seconds that a step takes, the device's own work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def percent(r: Spread, share: float = 1.0) -> Spread:
    """Return a ratio as what it adds, in per cent; ``share`` of the steps pay it."""
    return Spread(*(100 * share * (value - 1) for value in (r.median, r.low, r.high)))


@contextmanager
def open_runs(folder: Path) -> Iterator[Runs]:
    """Open an MLflow store in a folder, with one run for the training rows."""
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    runs = Runs(
        f"sqlite:///{folder}/mlflow.db", experiment="benchmark", project=folder, on_lost=_stop
    )
    runs.open("benchmark", tags={}, artifacts=None)
    runs.open_child("attention.grpo", tags={}, resumed=None)
    try:
        yield runs
    finally:
        runs.end({PARENT: "FINISHED"})


def make_blocks(
    setting: Setting, runs: Runs, folder: Path, *, length: int
) -> dict[str, Callable[[], None]]:
    """Return blocks of steps as long as one interval of logging: plain calls, the fold, and the fold with all around it."""
    runner, states = (
        StepRunner(setting.task, setting.grpo, setting.training),
        [setting.start(setting.grpo) for _ in range(3)],
    )
    catalog = DataCatalog({"metric_rows": MetricStreamDataset(str(folder / "metric_rows.jsonl"))})
    bar, numbers = Bar(None, "train", file=io.StringIO()), iter(range(10**9))

    def plain() -> None:
        for _ in range(length):
            plain_step(setting, states[0])

    def folded() -> None:
        for _ in range(length):
            runner(states[1], setting.batch)

    def tracked() -> None:
        rows = []
        for _ in range(length):
            metrics = runner(states[2], setting.batch)[1]
            rows.append({"step": next(numbers), "epoch": 0, "split": "train", **metrics})
            bar.update(reward=metrics["reward/mean"])
        catalog.save("metric_rows", rows)
        runs.log_rows("attention.grpo", rows)
        # In a run this happens in another thread every two seconds; here it has to fall into the block that it belongs to.
        runs._writer.post(runs._flush).result(timeout=60)

    return {"plain": plain, "fold": folded, "tracked": tracked}


def checkpoint_seconds(setting: Setting, folder: Path, *, rounds: int) -> list[float]:
    """Return what taking and saving a checkpoint costs, seconds."""
    state, dataset = setting.start(setting.grpo), CheckpointDataset(str(folder / "checkpoint"))
    return [timed(lambda: dataset.save(snapshot(state, progress={}))) for _ in range(rounds)]


def peak_memory_mb(step: Callable[[], Any], device: torch.device) -> float:
    """Return the memory that a step needs, MiB.

    On CUDA what it allocates beside the weights and optimisers of all steps; on a CPU the largest memory of the process while it
    runs, since its start where Linux cannot reset the mark.
    """
    if device.type == "cuda":
        step()
        held = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        return (torch.cuda.max_memory_allocated(device) - held) / 2**20
    try:
        held = set_mark()
    except OSError:
        step()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    step()
    return peak_since_mark_mb(held)


def measure(setting: Setting, *, rounds: int, surroundings: bool = True) -> dict[str, Any]:
    """Measure everything, or the steps alone; JSON-able."""
    steps = make_steps(setting)
    with quiet_nodes():
        passes = count_encoder_passes(setting, steps)
        memory = {name: peak_memory_mb(step, setting.task.device) for name, step in steps.items()}
        seconds = take_turns(steps, rounds=rounds)
    figures = compare_steps(seconds) | (
        measure_surroundings(setting, seconds, rounds=rounds) if surroundings else {}
    )
    return {
        "machine": describe(setting),
        "milliseconds": {
            name: 1000 * statistics.median(values) for name, values in seconds.items()
        },
        "encoder_passes": passes,
        "peak_memory_mb": memory,
        "figures": {name: vars(value) for name, value in figures.items()},
    }


def compare_steps(seconds: Mapping[str, Sequence[float]]) -> dict[str, Spread]:
    """Return the ratios of the steps."""
    ours = seconds["grpo once"]
    return {
        "naive / ours": ratio(seconds["naive"], ours),
        "ours / floor": ratio(ours, seconds["floor"]),
        "ours / floor + policy passes": ratio(ours, seconds["floor + policy passes"]),
        "ours / floor, SAM alone": ratio(ours, seconds["floor, SAM alone"]),
        "every_epoch / once": ratio(seconds["grpo every_epoch"], ours),
        "grpo / supervised": ratio(ours, seconds["supervised"]),
        "frozen, encoded / cached": ratio(seconds["frozen, encoded"], seconds["frozen, cached"]),
    }


def measure_surroundings(
    setting: Setting, seconds: Mapping[str, Sequence[float]], *, rounds: int
) -> dict[str, Spread]:
    """Return what Kedro, metrics, MLflow, the gradient report and checkpoints add to a step, in per cent."""
    training, ours = setting.training, seconds["grpo once"]
    with (
        tempfile.TemporaryDirectory() as name,
        open_runs(folder := Path(name)) as runs,
        quiet_nodes(),
    ):
        # A few per cent are looked for: fewer rounds would show the machine's noise.
        blocks = take_turns(
            make_blocks(setting, runs, folder, length=training.log_every_steps),
            rounds=max(5, rounds),
        )
        saving = checkpoint_seconds(setting, folder, rounds=rounds)
    report_share = 1 / read_parameters("base")["training"]["gradient_report_every_steps"]
    return {
        "overhead, Kedro's nodes (%)": percent(ratio(blocks["fold"], blocks["plain"])),
        "overhead, metrics + MLflow + bar (%)": percent(ratio(blocks["tracked"], blocks["fold"])),
        "overhead, all of it (%)": percent(ratio(blocks["tracked"], blocks["plain"])),
        "gradient report, spread (%)": percent(
            ratio(seconds["grpo with report"], ours), report_share
        ),
        "checkpoint, spread (%)": percent(
            ratio([a + b for a, b in zip(saving, ours, strict=True)], ours),
            1 / training.checkpoint_every_steps,
        ),
    }


def describe(setting: Setting) -> dict[str, Any]:
    """Return what the figures depend on."""
    sizes = {
        "batch_size": setting.training.batch_size,
        "group_size": setting.training.group_size,
        "update_epochs": setting.grpo.update_epochs,
        "image_size": setting.task.image_size,
        "precision": setting.training.precision,
        "micro_batch_size": setting.training.micro_batch_size,
    }
    about = machine.hardware(setting.task.device) | machine.library(torch.get_num_threads())
    return about | machine.code(setting.seed) | sizes


def format_report(
    found: Mapping[str, Any], targets: Mapping[str, tuple[str, float]] = WANTED
) -> str:
    """Return the report as text."""
    lines = [", ".join(f"{name} {value}" for name, value in found["machine"].items()), ""]
    lines.append(f"{'step':<22}{'ms (median)':>13}{'encoder passes':>16}{'peak memory, MB':>17}")
    for name, value in found["milliseconds"].items():
        lines.append(
            f"{name:<22}{value:>13.1f}{found['encoder_passes'][name]:>16}{found['peak_memory_mb'][name]:>17.0f}"
        )
    lines += ["", f"{'':<38}{'median':>8}{'min':>9}{'max':>9}   wanted"]
    for name, value in found["figures"].items():
        sign, limit = targets.get(name, ("", 0.0))
        wanted = f"{sign} {limit:g}" if sign else ""
        lines.append(
            f"{name:<38}{value['median']:>8.2f}{value['low']:>9.2f}{value['high']:>9.2f}   {wanted}".rstrip()
        )
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--group-size", type=int, default=4, help="samples per core (default 4)")
    parser.add_argument("--repeats", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--threads", type=int, default=2, help="threads of torch (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--smoke", action="store_true", help="sizes of conf/smoke")
    parser.add_argument(
        "--size", choices=["default", "vit_b", "tiny"], help="measure the steps alone, at this size"
    )
    parser.add_argument("--image-size", type=int, help="pixels of the generated images")
    for option in OVERRIDES:
        kind = int if option.endswith("size") else str
        parser.add_argument(f"--{option.replace('_', '-')}", type=kind, help=f"training.{option}")
    parser.add_argument("--json", action="store_true", help="print JSON in place of the tables")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    parameters = (
        read_parameters("base", "smoke")
        if args.smoke or args.size == "tiny"
        else read_parameters("base")
    )
    parameters["training"] |= {
        name: value for name in OVERRIDES if (value := getattr(args, name)) is not None
    }
    if args.image_size is not None:
        parameters["phantom"]["image_size"] = args.image_size
    with tempfile.TemporaryDirectory() as folder:
        if args.size == "vit_b":
            parameters = merge(parameters, {"model": write_vit_b(Path(folder) / "vit_b")})
        setting = build_setting(parameters, group_size=args.group_size, seed=args.seed)
        found = measure(setting, rounds=args.repeats, surroundings=args.size is None)
    targets = WANTED_OF_VIT_B if args.size == "vit_b" else WANTED
    print(json.dumps(found, indent=2) if args.json else format_report(found, targets))


def write_vit_b(folder: Path) -> dict[str, Any]:
    """Write a SAM with a ViT-B of random weights; returns what ``model`` must say of it, with the policy of the public design."""
    SamModel(SamConfig(vision_config={"initializer_range": 0.02})).save_pretrained(folder)
    form = {"format": "huggingface", "normalisation": "medsam"}
    return {
        "encoder": {"kind": "sam", "path": str(folder), **form},
        "policy": {"reads": {"encoder": "shared"}, "channels": 512},
        "class_decoder": {"size": 64},
    }


def _stop(error: BaseException) -> None:
    raise RuntimeError("the benchmark's MLflow store must answer") from error


if __name__ == "__main__":
    main()
