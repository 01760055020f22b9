"""A tiny molecule task for tests: the committed smoke parameters, molecules of 2 to 4 atoms, rewards measured in this process."""

from typing import Any

import pandas as pd
from rdkit import Chem
from tiny import Sections, constant, merge
from torch import Tensor

from grpo_pipeline.core.training.micro_batches import take_prompts
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.molecules.batch import MoleculeBatch
from grpo_pipeline.tasks.molecules.build import build_task
from grpo_pipeline.tasks.molecules.data.build_examples import build_examples
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams, Diffusion, NoiseParams, TrajectoryParams, X0LossParams
from grpo_pipeline.tasks.molecules.diffusion.trajectories import Trajectories
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.properties import tabulate_properties
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS
from grpo_pipeline.tasks.molecules.molecule_data import MoleculeData, attach_conditions
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, SamplingParams
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.task import MoleculeTask

SPLITS = {"train": ["CC", "CO", "CN", "C=C", "CCO", "C#C", "CCN", "CC=O"], "val": ["C=O", "C#N"], "test": ["CCC", "C=N", "CCCO"]}
VOCABULARY = {"atoms": ["C", "N", "O"], "charges": [0], "bonds": list(BONDS), "max_atoms": 4}

__all__ = ["constant", "merge"]
SECTIONS = Sections("molecules")
section, training_params, algorithm_params = SECTIONS.section, SECTIONS.training_params, SECTIONS.algorithm_params


def reward_params(**changes: Any) -> MoleculeReward:
    return MoleculeReward.model_validate(section("reward", **changes))


def pool_params(**changes: Any) -> PoolParams:
    return PoolParams.model_validate(section("reward_pool", **{"workers": 0, **changes}))


def trajectory_params(arm: str | None = None, **changes: Any) -> TrajectoryParams:
    values = section("trajectory") if arm is None else section(arm)["trajectory"]
    return TrajectoryParams.model_validate(merge(values, changes))


def prompt_params(**changes: Any) -> GraphPromptParams:
    return GraphPromptParams.model_validate(section("prompt", **changes))


def make_examples() -> MoleculeExamples:
    """13 molecules of 2 to 4 atoms; the rows of a split stand together."""
    smiles = [Chem.MolToSmiles(Chem.MolFromSmiles(text)) for members in SPLITS.values() for text in members]
    atoms = [Chem.MolFromSmiles(text).GetNumAtoms() for text in smiles]
    rows = range(1, len(smiles) + 1)
    checked = pd.DataFrame({"smiles": smiles, "name": "", "atoms": atoms, "lost_stereo": False, "row": rows})
    splits = {name: [Chem.CanonSmiles(text) for text in members] for name, members in SPLITS.items()}
    return build_examples(VOCABULARY, checked, tabulate_properties(smiles), splits)


def make_data(**prompt: Any) -> MoleculeData:
    return attach_conditions(make_examples(), prompt_params(**prompt))


def make_task(
    *,
    arm: str | None = None,
    prompt: dict[str, Any] | None = None,
    noise: dict[str, Any] | None = None,
    trajectory: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    reward_pool: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
) -> MoleculeTask:
    """Return a task; each argument changes a section, ``arm`` takes the trajectories of an arm that has its own."""
    return build_task(
        Diffusion(
            NoiseParams.model_validate(section("noise", **(noise or {}))),
            DenoiserParams.model_validate(section("denoiser")),
            trajectory_params(arm, **(trajectory or {})),
            X0LossParams.model_validate(section("supervised_loss")),
        ),
        prompt_params(**(prompt or {})),
        reward_params(**(reward or {})),
        pool_params(**(reward_pool or {})),
        SamplingParams.model_validate(section("sampling", **(sampling or {}))),
        make_data(**(prompt or {})),
    )


def components(rollouts: Trajectories, p: int, g: int, s: int) -> Components[Tensor]:
    """Return z_s of one trajectory, a batch of one graph."""
    return Components(*(getattr(rollouts, name)[p, g, s][None].long() for name in ("atoms", "charges", "bonds")))


def take(batch: MoleculeBatch, p: int) -> MoleculeBatch:
    """Return one prompt of a batch."""
    return take_prompts(batch, p, p + 1)
