"""Digest what decides a trial's result (parameters, data, seed, code): a finished trial is kept as long as it is the same."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

import grpo_pipeline
from grpo_pipeline.code_version import TRAINING_CODE, digest_of_sources
from grpo_pipeline.pipelines.compare.arms import ResolvedArm
from grpo_pipeline.pipelines.compare.cells import Cell
from grpo_pipeline.pipelines.compare.kit import TaskKit, examples_of, open_task
from grpo_pipeline.pipelines.training.resuming import run_digest

# Code that only reads finished cells (evaluation, reporting, tracking) does not count: a new figure trains nothing anew.
DECIDING = (
    *TRAINING_CODE,
    "pipelines/compare/one_cell.py",
    "pipelines/compare/dialogue_kit.py",
)


def cell_digest(kit: TaskKit, arm: ResolvedArm, cell: Cell, examples: Any) -> str:
    """Return the digest of one cell; two cells with the same one have the same result (on one machine)."""
    there = examples_of(kit, cell, examples)
    task = open_task(kit, arm, there)
    run = run_digest(arm.algorithm, arm.training, task, kit.without_features(there), seed=cell.seed)
    parameters = json.dumps(arm.parameters, sort_keys=True)
    return hashlib.sha256("\n".join([run, parameters, arm.description.rule, source_digest()]).encode()).hexdigest()


@cache
def source_digest() -> str:
    """Return the digest of the deciding source files and the versions of this package and torch."""
    versions = f"{grpo_pipeline.__version__} {torch.__version__}"
    return digest_of_sources(Path(grpo_pipeline.__file__).parent, DECIDING, salt=versions)
