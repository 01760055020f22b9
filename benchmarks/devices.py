"""Compare a step on another device and precision with the same step on the CPU, for every task.

    python benchmarks/devices.py                                  (CUDA where there is one, sizes of conf/smoke)
    python benchmarks/devices.py --env base --tasks attention
    python benchmarks/devices.py --device cpu                     (the CPU beside itself, and bf16 on it)
    python benchmarks/devices.py --write                          (the table goes into docs/gpu_seen.md)

The data stage runs once per task on the CPU, in a temporary project. Then, with the weights that a few steps on the CPU have
made and with samples that were drawn on the CPU, the device computes what the CPU computed:

`contract`  whether ``grpo_pipeline.testing.check_task`` finds every promise of the protocol kept there; its sentence is
            printed where one is broken
`log-prob`  largest difference of a log-probability of a stored decision, nats
`reward`    largest difference of a sample's reward
`gradient`  distance of the policy's and the supervised gradient from the CPU's, relative to the CPU's length
`ratio`     largest distance from 1 of the first ratio of a step, over steps that draw on the device
`resume`    whether a run that stops in the middle and goes on from its checkpoint ends with the same bits; else the largest
            distance of a weight; `again`: the same of a second run from the start, which is how far a device repeats itself
`waits`     how often a step makes the CPU wait for the device; --waits names the lines
`ms`        median time of a step that draws, rewards and updates; `MB`: peak memory of the device during these steps
"""

import argparse
import copy
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from kedro.runner import SequentialRunner
from measuring import machine
from torch import Tensor

from grpo_pipeline.core.groups import map_tensors
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.core.storage.snapshot import restore, snapshot
from grpo_pipeline.core.training.precision import network_precision
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.experiments.trials.arms import ALGORITHM, TRAINING, resolve_arm
from grpo_pipeline.pipelines.experiments.trials.preparation import open_trial
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.task_lookup import find_preparation
from grpo_pipeline.pipelines.experiments.trials.trial_params import ArmParams
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.order import rows_of_step
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks import TASKS, find_task
from grpo_pipeline.testing import TaskContractError, check_task

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "gpu_seen.md"
MARKS = ("<!-- devices -->", "<!-- /devices -->")
# precision of the networks, and how CUDA multiplies float32 numbers (docs/gpu.md)
PRECISIONS = (("float32", "ieee"), ("float32", "tf32"), ("bf16", "tf32"))
ARM, SEED, WARM = "grpo", 0, 3
Numbers = dict[str, float | str]
WAITS: Counter[str] = Counter()


@dataclass(frozen=True)
class Opened:
    """A task on one device, with its data and the parameters of its arm."""

    task: Any
    data: Any
    algorithm: AlgorithmParams
    training: TrainingParams

    def state(self, weights: dict[str, Tensor] | None = None) -> TrainState:
        """Return the start of the arm, or one with these weights."""
        state = build_state(self.algorithm, self.training, SEED, self.task, self.data)
        if weights is not None:
            state.policy.load_state_dict(weights)
        return state

    def batch(self, step: int) -> Any:
        """Return the batch of a step."""
        rows = rows_of_step(
            self.task.rows(self.data, "train"), step, batch_size=self.training.batch_size, seed=SEED
        )
        return make_training_batch(self.task, self.data, rows, seed=SEED, step=step)


@contextmanager
def project_copy() -> Iterator[Path]:
    """Yield a project with this one's code and configuration, and data of its own."""
    with tempfile.TemporaryDirectory() as name:
        target = Path(name) / "project"
        shutil.copytree(ROOT / "conf", target / "conf")
        shutil.copy(ROOT / "pyproject.toml", target)
        (target / "src").mkdir()
        (target / "src" / "grpo_pipeline").symlink_to(ROOT / "src" / "grpo_pipeline")
        for layer in (ROOT / "data").glob("0*"):
            (target / "data" / layer.name).mkdir(parents=True)
        yield target


def prepare(project: Path, name: str, env: str) -> None:
    """Run the data stage of a task."""
    with KedroSession.create(project, env=env) as session:
        session.run(pipeline_names=[f"{name}_data"], runner=SequentialRunner())


def open_task(
    project: Path, name: str, env: str, device: str, precision: str, products: str
) -> Opened:
    """Build a task with its data on a device, from the project's stored examples; stages before the arms do one step."""
    changes: dict[str, Any] = {
        "training": {"device": device, "precision": precision, "float32_products": products}
    }
    with KedroSession.create(project, env=env) as session:
        spec = find_task(name).with_stages_of(session.load_context().params[name])
    changes |= {stage: {"training": {"max_steps": 1}} for stage in spec.stages}
    with KedroSession.create(project, env=env, runtime_params={name: changes}) as session:
        context = session.load_context()
        parameters, examples = context.params[name], context.catalog[f"{name}.examples"].load()
    preparation = find_preparation(name)
    models = {ALGORITHM: AlgorithmParams, TRAINING: TrainingParams} | preparation.models
    arm = resolve_arm(ArmParams(base=ARM), parameters, name=ARM, models=models, path=name)
    opened = open_trial(preparation, arm, Trial(arm=ARM, seed=SEED), examples, {})
    return Opened(opened.task, opened.data, arm.algorithm, arm.training)


def to_device(tree: Any, device: torch.device) -> Any:
    """Copy every tensor of a tree to a device."""
    return map_tensors(tree, lambda x: x.to(device))


def draw(opened: Opened, state: TrainState) -> tuple[Any, float]:
    """Draw the samples of a batch with the generator of step 0."""
    temperature = 1.0
    with torch.no_grad(), network_precision(state):
        return (
            opened.task.sample(
                state.policy,
                opened.task.encode(state.policy, opened.batch(WARM)),
                opened.training.group_size,
                temperature=temperature,
                proposal="policy",
                generator=step_generator(SEED, WARM, device=opened.task.device),
            ),
            temperature,
        )


def measure(opened: Opened, state: TrainState, rollouts: Any, temperature: float) -> dict[str, Any]:
    """Score, reward and differentiate stored samples; everything returned lies on the CPU, in float64."""
    task, policy, batch = opened.task, state.policy, opened.batch(WARM)
    replicated = task.replicate(batch, opened.training.group_size)
    with network_precision(state):
        context = task.encode(policy, batch)
        outcomes = task.decode(policy, context, rollouts, replicated)
        scores = task.score(policy, context, rollouts, temperature=temperature)
    # Rewards and losses are computed outside, as in a step.
    parts, weights = task.reward(replicated, rollouts, outcomes)
    supervised = task.supervised_loss(policy, context, replicated, outcomes)
    total = sum(
        weights[name] * part.detach().double().nan_to_num(0.0) for name, part in parts.items()
    )
    is_valid = rollouts.is_valid
    # A weight for each sample that is the same on every device, so that the two gradients are of one function.
    signs = torch.linspace(-1.0, 1.0, is_valid[..., 0].numel(), dtype=torch.float64).to(
        is_valid.device
    )
    logprobs = scores.logprobs.double().masked_fill(~is_valid, 0.0)  # [P, G, L]
    loss = (signs.view(is_valid.shape[:2]) * logprobs.sum(2)).mean() + supervised.double()
    policy.zero_grad(set_to_none=True)
    loss.backward()
    gradient = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return {
        "logprobs": logprobs.detach().cpu(),
        "reward": total.cpu() if isinstance(total, Tensor) else torch.zeros(1),
        "gradient": torch.cat(gradient).double().cpu(),
    }


def train(
    opened: Opened, weights: dict[str, Tensor], steps: int, *, cut: int | None = None
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Train for some steps, through a checkpoint and freshly built modules at ``cut``; returns weights and metrics."""
    runner = StepRunner(opened.task, opened.algorithm, opened.training)
    state, found = opened.state(weights), []
    for _ in range(steps):
        if state.step == cut:
            state = restore(
                opened.state(), snapshot(state, progress={"position": 0, "total_steps": steps})
            )
        state, metrics = runner(state, opened.batch(state.step))
        found.append(metrics)
    return {
        name: tensor.detach().clone() for name, tensor in state.policy.state_dict().items()
    }, found


def count_waits(opened: Opened, weights: dict[str, Tensor]) -> int:
    """Count the synchronisations of one step, after one that is not counted; WAITS keeps the lines that cause them."""
    runner, state = (
        StepRunner(opened.task, opened.algorithm, opened.training),
        opened.state(weights),
    )
    state, _ = runner(state, opened.batch(0))
    batch = opened.batch(1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            runner(state, batch)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    found = [w for w in caught if "synchroniz" in str(w.message)]
    for warning in found:
        file = warning.filename.removeprefix(f"{ROOT}/")
        WAITS[f"{opened.task.name}: {file}:{warning.lineno}"] += 1
    return len(found)


def keeps_contract(opened: Opened) -> str:
    """Say whether the task keeps the promises of the protocol on its device; print the first one that it breaks."""
    try:
        with network_precision(opened.state()):  # around everything, which is more than a step does
            check_task(opened.task, opened.data)
    except TaskContractError as broken:
        print(f"{opened.task.name} on {opened.task.device}: {broken}", flush=True)
        return "broken"
    return "kept"


def apart(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """Return the largest distance of two sets of weights."""
    return max(
        float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()
    )


def same(distance: float) -> str:
    """Say whether two sets of weights are the same, or how far apart they are."""
    return "same bits" if distance == 0.0 else f"{distance:.1e}"


def compare(project: Path, name: str, env: str, device: str, steps: int) -> list[Numbers]:
    """Measure a task on the CPU and on the device in both precisions; one row for each."""
    cpu = open_task(project, name, env, "cpu", "float32", "default")
    warm, _ = train(cpu, copy.deepcopy(cpu.state().policy.state_dict()), WARM)
    rollouts, temperature = draw(cpu, cpu.state(warm))
    wanted = measure(cpu, cpu.state(warm), rollouts, temperature)
    rows: list[Numbers] = []
    kinds = (("cpu", "float32", "ieee"), *((device, *kind) for kind in PRECISIONS))
    for where, precision, products in kinds:
        opened = open_task(project, name, env, where, precision, products)
        placed = opened.task.device
        found = measure(opened, opened.state(warm), to_device(rollouts, placed), temperature)
        if placed.type == "cuda":
            torch.cuda.reset_peak_memory_stats(placed)
        ends, metrics = train(opened, warm, steps)
        again, _ = train(opened, warm, steps)
        resumed, _ = train(opened, warm, steps, cut=steps // 2)
        first = [abs(m["policy/ratio_first"] - 1.0) for m in metrics if "policy/ratio_first" in m]
        length = float(wanted["gradient"].norm())
        rows.append(
            {
                "task": name,
                "device": placed.type,
                "precision": f"{precision}, {products}" if placed.type == "cuda" else precision,
                "contract": keeps_contract(opened),
                "log-prob": float((found["logprobs"] - wanted["logprobs"]).abs().max()),
                "reward": float((found["reward"] - wanted["reward"]).abs().max()),
                "gradient": float((found["gradient"] - wanted["gradient"]).norm()) / length,
                "ratio": max(first, default=float("nan")),
                "again": same(apart(ends, again)),
                "resume": same(apart(ends, resumed)),
                "waits": str(count_waits(opened, warm)) if placed.type == "cuda" else "",
                "ms": statistics.median(m["step_seconds"] for m in metrics[1:]) * 1000,
                "MB": metrics[-1]["peak_memory_mb"],
            }
        )
        print(format_row(rows[-1]), flush=True)
    return rows


COLUMNS = (
    "task",
    "device",
    "precision",
    "contract",
    "log-prob",
    "reward",
    "gradient",
    "ratio",
    "again",
    "resume",
    "waits",
    "ms",
    "MB",
)


def format_row(row: Numbers) -> str:
    """Write a row of the table as Markdown."""
    cells = []
    for name in COLUMNS:
        value = row[name]
        whole = name in ("ms", "MB")
        cells.append(
            value if isinstance(value, str) else f"{value:.0f}" if whole else f"{value:.1e}"
        )
    return "| " + " | ".join(cells) + " |"


def format_table(rows: Sequence[Numbers], about: str) -> str:
    """Write the table as Markdown, with a line that says where it comes from."""
    head = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
    return "\n".join([about, "", *(f"| {line} |" for line in head), *map(format_row, rows)])


def write(text: str) -> None:
    """Put the table between its marks in docs/gpu_seen.md."""
    before, rest = PAGE.read_text(encoding="utf-8").split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{after}", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=default, help=f"beside the CPU (here {default})")
    parser.add_argument(
        "--env", default="smoke", help="sizes: an environment of conf/ (default smoke)"
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument(
        "--steps", type=int, default=8, help="steps that are timed and resumed (default 8)"
    )
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument(
        "--waits", action="store_true", help="print the lines that make the CPU wait"
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="torch.use_deterministic_algorithms"
    )
    parser.add_argument("--write", action="store_true", help="put the table into docs/gpu_seen.md")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # before CUDA starts
        torch.use_deterministic_algorithms(True, warn_only=True)
    start = time.perf_counter()
    rows: list[Numbers] = []
    with project_copy() as project, quiet_nodes():
        logging.disable(logging.INFO)
        bootstrap_project(project)
        for name in args.tasks:
            prepare(project, name, args.env)
            rows += compare(project, name, args.env, args.device, args.steps)
    about = (
        machine.hardware(torch.device(args.device))
        | machine.library(args.threads)
        | machine.code(SEED)
    )
    said = ", ".join(f"{key} {value}" for key, value in about.items())
    text = format_table(rows, f"`python benchmarks/devices.py --env {args.env}`: {said}")
    if args.waits:
        print("\n".join(f"{count:5d} {line}" for line, count in WAITS.most_common()))
    print(f"\n{text}\n\n{time.perf_counter() - start:.0f} s")
    if args.write:
        write(text)


if __name__ == "__main__":
    main()
