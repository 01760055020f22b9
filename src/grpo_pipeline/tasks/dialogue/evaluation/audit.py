"""Write and score the replies of the reward audit: of the initial policy, of baselines without a model, and references."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.statistics.metric import Direction
from grpo_pipeline.tasks.audit_plan import AuditPlan, Role
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import ReplyTask
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import training_texts, trivial_replies
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import submit_rewards
from grpo_pipeline.tasks.dialogue.scores.score_table import score_replies

BATCH_PROMPTS = 64
ROLES: dict[str, Role] = {
    "start": "start",
    "constant": "trivial",
    "top_words": "trivial",
    "copy_last_turn": "trivial",
    "copy_persona": "trivial",
    "reference": "ceiling",
}
METRICS: dict[str, Direction] = {
    "f1": "higher",
    "rouge_1": "higher",
    "rouge_2": "higher",
    "rouge_l": "higher",
    "bleu": "higher",
    "length": "none",
}


def audit_plan(rewards: DialogueReward) -> AuditPlan:
    """Plan the audit: its policies (rules of ``trivial_rules``), the weights of the reward, and the scores of single replies.

    ``length`` in words has no good side; a reward that goes with it can be raised by writing more, or less.
    """
    return AuditPlan(
        "example_id", "subject_id", policies=ROLES, weights=rewards.all_weights, metrics=METRICS
    )


@torch.no_grad()
def audit(
    task: ReplyTask,
    policy: LanguageModel,
    data: DialogueData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Score the policies of the plan: a row per example, policy and reply, with the columns of ``AuditPlan`` and ``reply``.

    Args:
        task: the task.
        policy: the initial policy.
        data: the data set; the rule ``top_words`` counts the answers of its training split.
        rows: row numbers to score, int64 [n].
        seed: seed of the sampled replies.
        n_samples: number of replies of the start to each example; the other rules give one.
    """
    table = data.examples.table
    training = training_texts(table)
    frames = []
    for number, first in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[first : first + BATCH_PROMPTS])
        examples = table.iloc[batch.rows.cpu().numpy()]
        generator = step_generator(seed, number, stream=Stream.AUDIT, device=task.device)
        said = {
            "start": _sample(task, policy, batch, n_samples=n_samples, generator=generator)
        } | _trivial(examples, training, has_answers=data.examples.has_answers)
        frames += [
            _score(task, batch, examples, said[name]).assign(policy=name)
            for name in ROLES
            if name in said
        ]
    return pd.concat(frames, ignore_index=True)


def _sample(
    task: ReplyTask,
    policy: LanguageModel,
    batch: DialogueBatch,
    *,
    n_samples: int,
    generator: torch.Generator,
) -> Sequence[Sequence[str]]:
    context, temperature = task.encode(policy, batch), task.replies.temperature
    return task.texts(
        task.sample(
            policy,
            context,
            n_samples,
            temperature=temperature,
            proposal="policy",
            generator=generator,
        )
    )


def _trivial(
    examples: pd.DataFrame, training: Sequence[str], *, has_answers: bool
) -> dict[str, Sequence[Sequence[str]]]:
    """Write the reply of each rule to each example, a group of one."""
    written = trivial_replies(
        training,
        list(examples["context"]),
        personas=list(examples["persona"]),
        answers=list(examples["answers"]) if has_answers else None,
    )
    return {rule: [(reply,) for reply in replies] for rule, replies in written.items()}


def _score(
    task: ReplyTask, batch: DialogueBatch, examples: pd.DataFrame, replies: Sequence[Sequence[str]]
) -> pd.DataFrame:
    """Score P groups of E replies; row p*E + e."""
    n_samples = len(replies[0])
    measured = submit_rewards(
        task.rewards,
        task.pool,
        replies=replies,
        answers=batch.answers,
        questions=batch.questions,
        cells=batch.cells,
    ).result()
    rewards = combine_rewards(measured.components, measured.weights)
    texts = [reply for group in replies for reply in group]
    scores = score_replies(texts, [answers for answers in batch.answers for _ in range(n_samples)])
    columns = {"reward": rewards.total} | {
        f"reward_{name}": component for name, component in measured.components.items()
    }
    frame = (
        examples[["example_id", "subject_id"]]
        .iloc[np.repeat(np.arange(len(examples)), n_samples)]
        .reset_index(drop=True)
    )
    return frame.assign(
        sample=np.tile(np.arange(n_samples), len(examples)),
        reply=[printable(text) for text in texts],
        **{name: value.flatten().cpu().numpy() for name, value in columns.items()},
        **{name: scores.get(name, np.full(len(texts), np.nan)) for name in METRICS},
    )
