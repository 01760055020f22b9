"""Describe the molecule task: arms, warm start, metrics and words."""

from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.molecules.data.params import (
    GeneratorParams,
    MoleculeDataParams,
    MoleculeSplitParams,
)
from grpo_pipeline.tasks.molecules.diffusion.params import (
    DenoiserParams,
    NoiseParams,
    TrajectoryParams,
    X0LossParams,
)
from grpo_pipeline.tasks.molecules.params import GraphPromptParams, PredictParams, SamplingParams
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.spec import TaskSpec, Wording

SPEC = TaskSpec(
    name="molecules",
    arms=("supervised", "grpo", "eager"),
    stages=("warm_start",),
    own={"eager": ("trajectory", "training")},
    key="smiles",
    noun="molecule",
    classes="atoms",
    one_of_each="grpo_pipeline.tasks.molecules.graphs.drawings:draw_examples",
    with_table="grpo_pipeline.tasks.molecules.data.examples:with_table",
    metrics="grpo_pipeline.tasks.molecules.evaluation.metrics:build_suite",
    pipelines="grpo_pipeline.tasks.molecules.pipelines",
    curves={
        "reward/validity/mean": "Valid graphs",
        "reward/logp/mean": "Reward, logP component",
        "molecule/uniqueness": "Different ones among valid molecules",
        "x0/loss": "Loss of held-out molecules",
    },
    words=Wording(
        drawn="of every graph that was drawn",
        gain="its molecules − the start's",
        rules="Other molecules; policy is that of",
        rule="molecules",
        others="Other molecules",
        caption="Other molecules for the same prompts",
        explained="Molecules of other rules for the same prompts",
        choices={"start": "the weights that it began with"},
        clusters="molecule",
        terms={
            "V.U.N.": "The share of all drawn graphs that are valid, unlike each other, and not among the training molecules.",
            "validity": "The share of drawn graphs that are one molecule with possible valences.",
            "uniqueness": "The share of different molecules among the valid ones.",
            "novelty": "The share of the different molecules that are not in the training split.",
            "logP": "How much better a molecule dissolves in fat than in water, as an estimate on a logarithmic scale.",
            "QED": "How alike a molecule's properties are to those of known drugs, from 0 to 1 (Bickerton et al., 2012).",
            "synthetic accessibility": "How hard a molecule is to make, 1 easy to 10 hard (Ertl and Schuffenhauer, 2009).",
            "W1": "How far values of the drawn molecules must move, on average, to be spread as in the training set.",
            "scaffold": "The rings of a molecule with what connects them; molecules of one scaffold are in one split.",
            "SMILES": "A molecule written as a line of letters.",
            "heavy atom": "An atom that is no hydrogen.",
            "fragment": "A part of a drawn graph that no bond connects with the rest.",
        },
    ),
    outputs={"smiles": "molecule"},
    pictures="grpo_pipeline.tasks.molecules.graphs.drawings:draw_frames",
    shown_arm="grpo",
    sections={
        "generator": GeneratorParams,
        "data": MoleculeDataParams,
        "split": MoleculeSplitParams,
        "prompt": GraphPromptParams,
        "noise": NoiseParams,
        "denoiser": DenoiserParams,
        "trajectory": TrajectoryParams,
        "reward": MoleculeReward,
        "reward_pool": PoolParams,
        "supervised_loss": X0LossParams,
        "sampling": SamplingParams,
        "predict": PredictParams,
    },
)
