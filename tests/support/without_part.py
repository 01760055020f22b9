"""Take parts of the step away as a person would, one after the other, and train without them.

    python without_part.py <folder for copies> <part> [<part> ...]

A part goes with its file and its lines in the list of parts. Prints a line of JSON for each: digests of the weights after two
steps of each arm that does not have it. The name "" takes nothing away.
"""

import hashlib
import json
import os
import re
import shutil
import sys
from pathlib import Path

import torch
import torch._dynamo  # an optimiser imports it: once, before the first copy
from kedro.pipeline import Pipeline  # noqa: F401  likewise
from tiny import Sections
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline import pipelines
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.tasks.base import Task  # noqa: F401

ARMS = {
    "supervised": {"losses": {"supervised": {"weight": 1.0}}, "advantage": {"method": "group"}, "proposal": "uniform"},
    "policy": {"losses": {"policy": {"kind": "grpo"}}, "advantage": {"method": "group"}},
}


def main(folder: str, *parts: str) -> None:
    torch.set_num_threads(1)
    for part in parts:
        if (child := os.fork()) == 0:
            print(json.dumps(trained(part, Path(folder, part or "whole"))), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"without {part} the step must run, got an error")


def take_away(step: Path, part: str) -> None:
    """Delete the file of a part, and its lines in the list of parts."""
    (step / "parts" / f"{part}.py").unlink()
    listing = step / "arm_parts.py"
    listing.write_text(re.sub(rf"(?m)^    {part}(\.[A-Z]+)?,\n", "", listing.read_text()))


def trained(part: str, folder: Path) -> dict[str, str]:
    """Return the digest of the weights of each arm that does not have the part; its package is the copy in ``folder``."""
    shutil.copytree(Path(pipelines.__path__[0], "step"), folder / "step", ignore=shutil.ignore_patterns("__pycache__"))
    if part:
        take_away(folder / "step", part)
    pipelines.__path__.insert(0, str(folder))
    from grpo_pipeline.pipelines.step import arm_parts
    from grpo_pipeline.pipelines.training.loop import StepRunner
    from grpo_pipeline.pipelines.training.start import build_state

    found = {"part": part, "list": arm_parts.__file__}
    task = TinyChoices()
    training = own_rates(Sections("attention").training_params(epochs=3, batch_size=8, group_size=4), 0.3)
    for arm, values in ARMS.items():
        if arm == part:
            continue
        algorithm = AlgorithmParams.model_validate(values)
        state = build_state(algorithm, training, 0, task, None)
        run, batch = StepRunner(task, algorithm, training), task.make_batch(None, task.rows(None, "train")[:8])
        for _ in range(2):
            state, _ = run(state, batch)
        weights = b"".join(p.detach().numpy().tobytes() for p in state.policy.parameters())
        found[arm] = hashlib.sha256(weights).hexdigest()
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
