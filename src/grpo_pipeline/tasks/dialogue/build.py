"""Build the dialogue task from parameters, and refuse settings that could not be trained."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import ExecutionParams
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.device import choose_device
from grpo_pipeline.core.training.precision import set_float32_products
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData, tokenise_examples
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.retriever.params import LearnedRetriever
from grpo_pipeline.tasks.dialogue.retriever.shelf import StoryShelf
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.task import DialogueTask
from grpo_pipeline.tasks.extras import require
from grpo_pipeline.tasks.plain_execution import check_plain

LIBRARIES = (
    "transformers",
    "rouge_score",
    "sacrebleu",
)  # peft is asked for by the language model that has LoRA


def build_task(
    language_model: LanguageModelParams,
    prompt: PromptParams,
    replies: ReplyParams,
    rewards: DialogueReward,
    reward_pool: PoolParams,
    supervised: SupervisedParams,
    *,
    execution: ExecutionParams | None = None,
    examples: DialogueExamples | None = None,
) -> DialogueTask:
    """Build the task with fresh weights; without ``execution`` on the GPU if there is one. No process is started yet.

    A retriever finds the stories of the ``examples``, as many for a prompt as each example has; nothing else of them is read.

    Raises:
        FileNotFoundError: if the language model's folder or a file of it is missing.
        ValueError: if the folder holds another kind of model, or its tokenizer does not fit. Also if prompt and reply do not fit
            its positions, or the step asks for an option that it lacks.
        ModuleNotFoundError: if the task's libraries are not installed.
    """
    require(*LIBRARIES, extra="dialogue")
    if execution is not None:
        check_plain(execution, task="dialogue")
        set_float32_products(execution.float32_products)
    built, tokenizer = build_language_model(language_model, seed=0)
    _check_room(built, prompt, replies)
    return DialogueTask(
        language_model=language_model,
        prompt=prompt,
        replies=replies,
        rewards=rewards,
        supervised=supervised,
        device=choose_device("auto" if execution is None else execution.device),
        tokenizer=tokenizer,
        kind=built.kind,
        pool=RewardPool(reward_pool),
        shelf=None
        if prompt.retriever is None
        else _shelf(prompt.retriever, prompt, rewards, examples),
    )


def _shelf(
    retriever: LearnedRetriever,
    prompt: PromptParams,
    rewards: DialogueReward,
    examples: DialogueExamples | None,
) -> StoryShelf:
    if examples is None or prompt.template is not None or rewards.environment is not None:
        raise ValueError(
            "dialogue.prompt.retriever must be null without a story corpus, with a template and with an environment of the "
            "reward, got a value; leave it out"
        )
    top_n = len(examples.table["story_ids"].iloc[0])
    return StoryShelf(examples.stories, top_n=top_n, query=retriever.query)


def check_arms(task: DialogueTask, algorithms: Iterable[AlgorithmParams]) -> None:
    """Check that the task can train all arms before the first begins; raises as ``DialogueTask.check_algorithm``."""
    for algorithm in algorithms:
        task.check_algorithm(algorithm)


def tokenise(task: DialogueTask, examples: DialogueExamples) -> tuple[DialogueData, dict[str, Any]]:
    """Tokenise the examples, and count the cut texts; see ``tokenise_examples``."""
    table = examples.table
    return tokenise_examples(
        examples,
        task.tokenizer,
        kind=task.kind,
        prompt=task.prompt,
        max_reply_tokens=task.replies.max_tokens,
        stages=task.stages(table["question"], table["answers"], table["columns"]),
    )


def start_from(task: DialogueTask, model: ModelWeights) -> DialogueTask:
    """Give the task these initial weights; it shares the pool of processes."""
    return replace(task, start=model)


def _check_room(language_model: LanguageModel, prompt: PromptParams, replies: ReplyParams) -> None:
    """Check that prompt and reply fit the positions of a causal language model; a T5 has no such limit."""
    limit = (
        getattr(language_model.model.config, "max_position_embeddings", None)
        if language_model.kind == "causal"
        else None
    )
    if limit is not None and prompt.max_tokens + replies.max_tokens - 1 > limit:
        raise ValueError(
            f"dialogue.prompt.max_tokens must be at most {limit - replies.max_tokens + 1}, so that a reply of "
            f"{replies.max_tokens} tokens fits into {limit} positions, got {prompt.max_tokens}; cut prompts, or allow shorter "
            "replies"
        )
