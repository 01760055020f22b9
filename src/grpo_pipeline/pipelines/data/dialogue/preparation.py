"""Preparation of the dialogue task: the task object and the tokens."""

from dataclasses import replace
from typing import Any

from kedro.pipeline import Node, Pipeline

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.pipelines.experiments.trials.setup import TaskSetup
from grpo_pipeline.tasks.dialogue import build
from grpo_pipeline.tasks.dialogue.batch import DialogueData
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelSection, ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.tokens import stack_rows
from grpo_pipeline.tasks.dialogue.params import PromptParams, RewardParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.task import DialogueTask

SECTIONS = ("language_model", "prompt", "replies", "rewards", "supervised_loss", "training")


def build_task(
    language_model: LanguageModelSection,
    prompt: PromptParams,
    replies: ReplyParams,
    rewards: RewardParams,
    supervised_loss: SupervisedParams,
    training: TrainingParams,
) -> DialogueTask:
    """Put the task together, with fresh weights or those of the language model's folder; refuses what does not go together."""
    return build.build_task(
        language_model.params, prompt, replies, rewards, supervised_loss, execution=training
    )


def tokenise_examples(
    task: DialogueTask, examples: DialogueExamples
) -> tuple[DialogueData, dict[str, Any]]:
    """Turn the examples into tokens once; report what was cut."""
    return build.tokenise(task, examples)


def create_pipeline() -> Pipeline:
    """Wire ``dialogue.examples`` -> ``dialogue.untrained_task`` and ``dialogue.data``."""
    return Pipeline(
        [
            Node(
                build_task,
                [f"params:dialogue.{name}" for name in SECTIONS],
                "dialogue.untrained_task",
                name="build_task",
                namespace="dialogue.data",
            ),
            Node(
                tokenise_examples,
                ["dialogue.untrained_task", "dialogue.examples"],
                ["dialogue.data", "dialogue.token_report"],
                name="tokenise_examples",
                namespace="dialogue.data",
            ),
        ],
        tags="dialogue",
    )


def adapt_setup(setup: TaskSetup) -> TaskSetup:
    """Return the setup whose digests need no tokens."""
    nothing = stack_rows([])
    return replace(
        setup, without_features=lambda examples: DialogueData(examples, nothing, nothing)
    )
