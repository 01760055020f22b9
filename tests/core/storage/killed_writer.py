"""Run as a script by test_checkpoint.py: write checkpoints in processes that die, and say what can be read afterwards.

Usage: ``killed_writer.py FOLDER``; prints one JSON object per death.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import torch

from grpo_pipeline.core.rng import capture_rng
from grpo_pipeline.core.storage.checkpoint import Checkpoint, CheckpointError, load_checkpoint, save_checkpoint  # noqa: F401 the error is for importers

RNG = capture_rng()


def numbered(step):
    """Return a checkpoint of which every tensor and counter says ``step``."""
    tensors = {f"w{i}": torch.full((64, 256), float(step)) for i in range(3)}
    return Checkpoint(
        policy=tensors,
        optimizer={"tensors": {f"{name}:m": t.clone() for name, t in tensors.items()}, "scalars": {}, "groups": []},
        reference=None,
        rng=RNG,
        progress={"step": step, "epoch": 0, "seed": 0},
    )


def read(folder):
    """Load and return the step, or -1 where the parts of the checkpoint disagree."""
    checkpoint = load_checkpoint(folder)
    seen = {float(x) for part in (checkpoint.policy, checkpoint.optimizer["tensors"]) for t in part.values() for x in t.unique()}
    return checkpoint.progress["step"] if seen == {float(checkpoint.progress["step"])} else -1


def die_at(operation):
    """Make the n-th operation on the file system the last thing that this process does."""
    left = [operation]

    def counted(function):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                os._exit(9)
            return function(*args, **kwargs)

        return call

    for owner, name in [
        (os, "mkdir"),
        (os, "fsync"),
        (os, "rename"),
        (os, "unlink"),
        (os, "rmdir"),
        (os, "open"),
        (shutil, "rmtree"),
    ]:
        setattr(owner, name, counted(getattr(owner, name)))


def main(folder):
    save_checkpoint(folder, numbered(0))
    for operation in range(200):
        before = read(folder)
        pid = os.fork()
        if pid == 0:
            die_at(operation)
            save_checkpoint(folder, numbered(before + 1))
            os._exit(0)
        finished = os.waitpid(pid, 0)[1] == 0
        print(json.dumps({"before": before, "after": read(folder), "finished": finished}))
        if finished:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
