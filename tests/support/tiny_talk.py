"""A tiny dialogue task for tests: the smoke parameters, a language model of 8 numbers, and rewards measured in this process."""

from typing import Any

import pandas as pd
from tiny import Sections, constant, merge

from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.dialogue.build import build_task, tokenise
from grpo_pipeline.tasks.dialogue.data.drafts import EXAMPLE_COLUMNS
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples, content_digest
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.task import DialogueTask

SPLITS = ("train",) * 8 + ("val",) * 2 + ("test",) * 3
__all__ = ["constant", "merge"]
SECTIONS = Sections("dialogue")
section, training_params, algorithm_params = SECTIONS.section, SECTIONS.training_params, SECTIONS.algorithm_params


def reply_params(**changes: Any) -> ReplyParams:
    return ReplyParams.model_validate(section("replies", **{"max_tokens": 6, **changes}))


def reward_params(**changes: Any) -> DialogueReward:
    return DialogueReward.model_validate(section("reward", **changes))


def pool_params(**changes: Any) -> PoolParams:
    return PoolParams.model_validate(section("reward_pool", **{"workers": 0, **changes}))


def reader_params(tuning: dict[str, Any] | None = None, **network: Any) -> LanguageModelParams:
    sizes = {"tokenizer": "bytes"} if network.get("kind") == "folder" else section("language_model")["network"] | {"width": 8}
    return LanguageModelParams.model_validate({"network": sizes | network, "tuning": tuning})


def make_examples() -> DialogueExamples:
    """13 examples of 5 personas and two stories; row r is answered by one or two short replies."""
    words = ("red", "blue", "green", "a cat", "a dog")
    rows = [
        {
            "example_id": f"e{i:02d}",
            "subject_id": f"p{i % 5}",
            "partner_id": "",
            "persona": f"i like {words[i % 5]}.",
            "context": f"hello\nwhat is number {i}?",
            "question": f"persona: i like {words[i % 5]}. context: hello\nwhat is number {i}?",
            "answers": [words[i % 5], f"i like {words[i % 5]}"][: 1 + i % 2],
            "needs": "persona",
            "story_id": "",
            "split": split,
            "row": i + 1,
            "columns": "{}",
            "messages": "[]",
            "story_ids": ["s1", "s2"] if i % 2 else ["s2", "s1"],
        }
        for i, split in enumerate(SPLITS)
    ]
    table = pd.DataFrame(rows, columns=[*EXAMPLE_COLUMNS, "story_ids"])
    stories = pd.DataFrame(
        {"story_id": ["s1", "s2"], "title": ["one", ""], "text": ["a cat ran.", "a dog sat still."], "persona_id": ["", ""]}
    )
    return DialogueExamples(table, stories, content_digest(table, stories))


def make_task(
    *,
    language_model: dict[str, Any] | None = None,
    prompt: dict[str, Any] | None = None,
    replies: dict[str, Any] | None = None,
    reward: dict[str, Any] | None = None,
    reward_pool: dict[str, Any] | None = None,
    **supervised: Any,
) -> DialogueTask:
    """Return a task; each argument changes a section."""
    return build_task(
        reader_params(**(language_model or {})),
        PromptParams.model_validate(section("prompt", **(prompt or {}))),
        reply_params(**(replies or {})),
        reward_params(**(reward or {})),
        pool_params(**(reward_pool or {})),
        SupervisedParams.model_validate(section("supervised_loss", **supervised)),
    )


def make_data(task: DialogueTask | None = None) -> DialogueData:
    return tokenise(task or make_task(), make_examples())[0]
