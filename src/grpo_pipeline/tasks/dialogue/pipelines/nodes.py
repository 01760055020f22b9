"""Define the nodes of the dialogue task's data, of the task object and of the tokens.

The checks and the arithmetic are in ``tasks.dialogue``.
"""

from dataclasses import replace
from typing import Any

import pandas as pd

from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.tasks.dialogue import build
from grpo_pipeline.tasks.dialogue.data import checks, retrieval, splits, story_index
from grpo_pipeline.tasks.dialogue.data import examples as example_data
from grpo_pipeline.tasks.dialogue.data.arithmetic import write_problems
from grpo_pipeline.tasks.dialogue.data.examples import DialogueExamples
from grpo_pipeline.tasks.dialogue.data.generated import generate
from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.data.guess_number import write_games
from grpo_pipeline.tasks.dialogue.data.params import (
    DialogueDataParams,
    DialogueSplitParams,
    GuessSource,
    RetrievalParams,
    WrittenPrompts,
)
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles, dump_lines
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.task import DialogueTask
from grpo_pipeline.tasks.refusals import after_refusals


def generate_dialogues(
    personas: PersonaParams, data: DialogueDataParams
) -> tuple[dict[str, bytes], dict[str, object]]:
    """Generate the files, with a report; another ``source`` gives no files."""
    if isinstance(data.source, WrittenPrompts):
        source = data.source
        written = write_games(source) if isinstance(source, GuessSource) else write_problems(source)
        summary = {"examples": len(written), "params": data.source.model_dump(mode="json")}
        return {"examples.jsonl": dump_lines(written)}, {"source": data.source.kind, **summary}
    if data.source.kind != "generated":
        return {}, {"source": data.source.kind, "examples": 0, "stories": 0}
    rows, stories = generate.generate_rows(personas), generate.generate_stories(personas)
    files = {"examples.jsonl": dump_lines(rows), "stories.jsonl": dump_lines(stories)}
    summary = {
        "examples": len(rows),
        "stories": len(stories),
        "params": personas.model_dump(mode="json"),
    }
    return files, {"source": data.source.kind, **summary}


def check_dialogues(
    data: DialogueDataParams, raw: DialogueFiles, generated: dict[str, object]
) -> checks.CheckedData:
    """Check every row; see ``tasks.dialogue.data.checks.sort_dialogues``."""
    return checks.sort_dialogues(raw, generated, data)


def split_personas(
    split: DialogueSplitParams,
    data: DialogueDataParams,
    checked: pd.DataFrame,
    quarantine: pd.DataFrame,
) -> splits.Splits:
    """Stop for bad rows, now that they are listed, or divide the examples by persona.

    See ``tasks.dialogue.data.checks.refuse_rows`` and ``splits.split_personas``.
    """
    checks.refuse_rows(checked, quarantine, data)
    with after_refusals(checks.describe_bad(quarantine, n_left=len(checked))):
        return splits.split_personas(checked, split)


def index_stories(retrieval: RetrievalParams, stories: pd.DataFrame) -> story_index.StoryIndex:
    """Index the corpus; see ``tasks.dialogue.data.story_index.index_stories``."""
    return story_index.index_stories(stories, retrieval)


def build_dialogue_examples(
    params: RetrievalParams,
    index: story_index.StoryIndex,
    checked: pd.DataFrame,
    stories: pd.DataFrame,
    parts: splits.Splits,
) -> tuple[DialogueExamples, dict[str, object]]:
    """Build the model input, with a report on how often the story that a reply needs is found."""
    built = example_data.build_examples(index, checked, stories, parts, params)
    return built, retrieval.retrieval_report(built.table, stories=len(stories), params=params)


def build_task(
    language_model: LanguageModelParams,
    prompt: PromptParams,
    replies: ReplyParams,
    reward: DialogueReward,
    reward_pool: PoolParams,
    supervised_loss: SupervisedParams,
    training: TrainingParams,
    data: DialogueDataParams,
    examples: DialogueExamples,
) -> DialogueTask:
    """Build the task with fresh weights or those of the language model's folder; refuses settings that do not fit together."""
    task = build.build_task(
        language_model,
        prompt,
        replies,
        reward,
        reward_pool,
        supervised_loss,
        execution=training,
        examples=examples,
    )
    return replace(task, prompt_column=data.source.prompt_column)


def tokenise_examples(
    task: DialogueTask, examples: DialogueExamples
) -> tuple[DialogueData, dict[str, Any]]:
    """Tokenise the examples once, with a report on cut texts."""
    return build.tokenise(task, examples)
