"""Read an exported molecule model from its folder alone: the denoiser, its noise, vocabulary and prompt settings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import load_weights
from grpo_pipeline.tasks.exported import Column, Serving
from grpo_pipeline.tasks.molecules.denoiser.denoiser import GraphPolicy, build_policy
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
)
from grpo_pipeline.tasks.molecules.diffusion.trajectories import graphs_at
from grpo_pipeline.tasks.molecules.diffusion.trajectory_sampling import sample_trajectories
from grpo_pipeline.tasks.molecules.graphs.encoding import Decoded, decode
from grpo_pipeline.tasks.molecules.graphs.graphs import NAMES, Components, make_prompts
from grpo_pipeline.tasks.molecules.graphs.properties import PropertyScales
from grpo_pipeline.tasks.molecules.graphs.vocabulary import Vocabulary, read_vocabulary
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams


@dataclass(frozen=True)
class ExportedDenoiser:
    """A trained denoiser with its files, ready to draw molecules.

    Attributes:
        policy: denoiser and noise with the arm's weights, on the CPU.
        vocabulary: what its classes mean.
        nodes: n, the largest number of atoms.
        trajectory: how graphs are drawn.
        sampling: temperature of the evaluation, and how many graphs are drawn at once.
        scales: of the properties that a prompt names, in the prompt's order; empty where it names none.
    """

    policy: GraphPolicy
    vocabulary: Vocabulary
    nodes: int
    trajectory: TrajectoryParams
    sampling: SamplingParams
    scales: PropertyScales


def read_exported(folder: Path) -> ExportedDenoiser:
    """Read a model that an arm of the molecule task has left.

    Raises:
        FileNotFoundError: if nothing is there.
        CorruptFolderError: if a file is missing or damaged.
        ValueError: if the model is another task's, or of a version that did not say how its properties are scaled.
    """
    weights = load_weights(folder)
    config = weights.config
    if config.get("task") != "molecules":
        raise ValueError(
            f"{folder} must hold a model of the molecule task, got {config.get('task')!r}; name another folder"
        )
    prompt = GraphPromptParams.model_validate(config["prompt"])
    scales = PropertyScales.from_json(config.get("scales", {}))
    if scales.names != prompt.conditions:
        raise ValueError(
            f"{folder} must hold the scales of {list(prompt.conditions)}, got {list(scales.names)}; train again"
        )
    limits = Components(*(weights.tensors[f"noise.{name}.limit"] for name in NAMES))
    policy = build_policy(
        limits,
        NoiseParams.model_validate(config["noise"]),
        DenoiserParams.model_validate(config["denoiser"]),
        conditions=len(prompt.conditions),
        seed=0,
    )
    policy.load_state_dict(dict(weights.tensors))
    return ExportedDenoiser(
        policy.eval(),
        read_vocabulary(config["vocabulary"]),
        int(config["nodes"]),
        TrajectoryParams.model_validate(config["trajectory"]),
        SamplingParams.model_validate(config["sampling"]),
        scales,
    )


@torch.no_grad()
def draw_molecules(
    model: ExportedDenoiser,
    sizes: Sequence[int],
    *,
    generator: torch.Generator,
    targets: Mapping[str, Sequence[float]] | None = None,
    temperature: float | None = None,
) -> list[Decoded]:
    """Draw one molecule for each size.

    Args:
        model: of ``read_exported``.
        sizes: numbers of heavy atoms, each between 1 and ``model.nodes``.
        generator: on the CPU, the only source of randomness.
        targets: property -> wanted value for each size, in the property's own unit, for a model whose prompts name properties.
        temperature: divides the logits; None takes that of the evaluation.

    Raises:
        ValueError: if a size is outside, or the targets are not those that the prompts name.
    """
    wanted = model.scales.apply({} if targets is None else targets, rows=len(sizes))  # [P, F]
    prompts = make_prompts(torch.as_tensor(sizes, dtype=torch.int64), model.nodes, wanted)
    drawn = sample_trajectories(
        model.policy,
        prompts,
        1,
        params=model.trajectory,
        temperature=model.sampling.temperature if temperature is None else temperature,
        generator=generator,
    )
    return decode(graphs_at(drawn, 0), model.vocabulary)


# Sizes and counts as a table, of the parameters or of a request.

AT_ONCE, MOST_MOLECULES = 64, 1024
"""Molecules that are drawn together, and that one request to a server may ask for."""
ANSWERS = ("row", "sample", "size", "smiles", "is_valid", "cause")


def answer(model: ExportedDenoiser, table: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Draw the molecules that every row of a table asks for; all of them, or none.

    Args:
        model: of ``read_exported``.
        table: column ``size``, heavy atoms; ``count``, how many molecules of it (1 where it is not there); and, of a model
            whose prompts name properties, a column with the wanted value of each.
        seed: of the molecules; those of a row follow from the seed and the row's number.

    Returns:
        one row for each molecule: ``row`` of the table and ``sample``, counted from 0, ``size``, ``smiles`` ("" if it is not
        valid), ``is_valid`` and why not.

    Raises:
        ValueError: naming the first row that is not right, counted from 0.
    """
    if "size" not in table.columns:
        raise ValueError(
            f"the prompts must have a column 'size', got {list(table.columns)}; add it"
        )
    if seed < 0:
        raise ValueError(f"seed must be at least 0, got {seed}; correct it")
    found: list[dict[str, Any]] = []
    for number, row in enumerate(table.to_dict("records")):
        try:
            found += _draw_row(model, row, number, seed=seed)
        except ValueError as error:
            raise ValueError(f"row {number} of the prompts: {error}") from error
    return pd.DataFrame(found, columns=list(ANSWERS))


def _draw_row(
    model: ExportedDenoiser, row: Mapping[Any, Any], number: int, *, seed: int
) -> list[dict[str, Any]]:
    size, count = _whole(row["size"], "size"), _whole(row.get("count", 1), "count")
    if not 1 <= size <= model.nodes:
        raise ValueError(
            f"size must be from 1 to {model.nodes}, the largest molecule of the training, got {size}; correct it"
        )
    names = model.scales.names
    if lost := [name for name in names if name not in row]:
        raise ValueError(
            f"the model needs a wanted {' and '.join(names)}, got no {lost[0]}; add it"
        )
    rows: list[dict[str, Any]] = []
    for part, start in enumerate(range(0, count, AT_ONCE)):
        n = min(AT_ONCE, count - start)
        generator = step_generator(seed, number, part, stream=Stream.PREDICTION, device="cpu")
        wanted = {name: [float(row[name])] * n for name in names}
        drawn = draw_molecules(model, [size] * n, generator=generator, targets=wanted)
        rows += [
            {
                "row": number,
                "sample": start + place,
                "size": size,
                "smiles": one.smiles,
                "is_valid": one.is_valid,
                "cause": one.cause,
            }
            for place, one in enumerate(drawn)
        ]
    return rows


def _whole(value: Any, name: str) -> int:
    number = float(value) if str(value).strip() else np.nan
    if not np.isfinite(number) or number != int(number) or number < 1:
        raise ValueError(f"{name} must be a whole number from 1, got {value!r}; correct it")
    return int(number)


def answer_request(model: ExportedDenoiser, table: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Draw what a request asks for (``answer``), of which a server draws so many at once."""
    asked = len(table)
    if "count" in table and len(table):
        asked = int(np.nansum(pd.to_numeric(table["count"], errors="coerce")))
    if asked > MOST_MOLECULES:
        raise ValueError(
            f"a request must ask for at most {MOST_MOLECULES} molecules, got {asked}; send several"
        )
    return answer(model, table, seed=seed)


def request_columns(config: Mapping[str, Any]) -> list[Column]:
    """Return the columns of a request: size, count, and the properties that the model's prompts name."""
    return [
        Column("size", "long", True),
        Column("count", "long"),
        *(Column(name, "double", True) for name in config.get("scales", {})),
    ]


SERVING = Serving(
    load=read_exported,
    answer=answer_request,
    inputs=request_columns,
    outputs=lambda config: [
        *(Column(name, "long", True) for name in ("row", "sample", "size")),
        Column("smiles", "string", True),
        Column("is_valid", "boolean", True),
        Column("cause", "string", True),
    ],
    options={"seed": 0},
    example=lambda: pd.DataFrame({"size": [5], "count": [1]}),
    needs=frozenset({"prompt", "denoiser", "noise", "vocabulary"}),
    requirements=(
        "mlflow",
        "numpy",
        "pandas",
        "pydantic",
        "rdkit",
        "safetensors",
        "scipy",
        "torch",
        "tqdm",
    ),
)
