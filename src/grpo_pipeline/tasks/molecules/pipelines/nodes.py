"""Define the nodes of the molecule task's data, of its conditions, and of the task object.

RDKit is an extra: a module that needs it is imported when a node runs, so that the registry opens without it. The chemistry is in
``tasks.molecules``.
"""

from typing import Any

import pandas as pd

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.extras import require
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.data.params import (
    GeneratorParams,
    MoleculeDataParams,
    MoleculeSplitParams,
)
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    Diffusion,
    NoiseParams,
    TrajectoryParams,
    X0LossParams,
)
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.refusals import after_refusals
from grpo_pipeline.tasks.text_lines import TextFile


def generate_molecules(
    generator: GeneratorParams, data: MoleculeDataParams
) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Generate the molecules' file, with a report; another ``source`` gives no file.

    Raises:
        ModuleNotFoundError: if RDKit is not installed; this node runs first.
    """
    require("rdkit", extra="molecules")
    if data.source.kind != "generated":
        return {}, {"source": data.source.kind, "molecules": 0}
    from grpo_pipeline.tasks.molecules.data.generate import enumerate_molecules

    smiles = enumerate_molecules(generator)
    files = {"molecules.smi": "".join(f"{text}\n" for text in smiles).encode()}
    return files, {
        "source": data.source.kind,
        "molecules": len(smiles),
        "params": generator.model_dump(mode="json"),
    }


def check_molecules(
    data: MoleculeDataParams, raw: TextFile, generated: dict[str, Any]
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any], dict[str, Any]]:
    """Check every molecule; see ``tasks.molecules.data.checks.sort_molecules``."""
    from grpo_pipeline.tasks.molecules.data import checks

    return checks.sort_molecules(raw, generated, data)


def split_molecules(
    split: MoleculeSplitParams,
    data: MoleculeDataParams,
    checked: pd.DataFrame,
    quarantine: pd.DataFrame,
) -> dict[str, list[str]]:
    """Stop for bad molecules, now that they are listed, or divide the others.

    See ``tasks.molecules.data.checks.refuse_molecules`` and ``examples.split_molecules``.
    """
    from grpo_pipeline.tasks.molecules.data import checks
    from grpo_pipeline.tasks.molecules.data.splits import split_molecules

    checks.refuse_molecules(checked, quarantine, data)
    with after_refusals(checks.describe_bad(quarantine, n_left=len(checked))):
        return split_molecules(checked, split)


def measure_molecules(checked: pd.DataFrame) -> pd.DataFrame:
    """Compute QED, logP and synthetic accessibility of every molecule."""
    from grpo_pipeline.tasks.molecules.graphs.properties import measure_all

    return measure_all(list(checked["smiles"]))


def build_molecule_examples(
    vocabulary: dict[str, Any],
    checked: pd.DataFrame,
    properties: pd.DataFrame,
    parts: dict[str, list[str]],
) -> MoleculeExamples:
    """Build the model input; see ``tasks.molecules.data.build_examples``."""
    from grpo_pipeline.tasks.molecules.data.build_examples import build_examples

    return build_examples(vocabulary, checked, properties, parts)


def attach_conditions(prompt: GraphPromptParams, examples: MoleculeExamples) -> Any:
    """Add the properties that prompts name to the molecules; refuses molecules larger than the graphs.

    Raises:
        ModuleNotFoundError: if RDKit is not installed.
    """
    require("rdkit", extra="molecules")
    from grpo_pipeline.tasks.molecules import molecule_data

    return molecule_data.attach_conditions(examples, prompt)


def join_diffusion(
    noise: NoiseParams,
    denoiser: DenoiserParams,
    trajectory: TrajectoryParams,
    supervised_loss: X0LossParams,
) -> Diffusion:
    """Bundle the parameters of the diffusion."""
    return Diffusion(noise, denoiser, trajectory, supervised_loss)


def build_task(
    prompt: GraphPromptParams,
    reward: MoleculeReward,
    reward_pool: PoolParams,
    sampling: SamplingParams,
    training: TrainingParams,
    diffusion: Diffusion,
    data: Any,
) -> Any:
    """Build the task with fresh weights; refuses settings that do not fit together."""
    from grpo_pipeline.tasks.molecules import build

    return build.build_task(
        diffusion, prompt, reward, reward_pool, sampling, data, execution=training
    )
