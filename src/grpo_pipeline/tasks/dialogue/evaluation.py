"""Prediction rows of the dialogue task: one row per example and rule."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import step_generator
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.reader import Encoded, Reader
from grpo_pipeline.tasks.dialogue.reply_scores import score_replies
from grpo_pipeline.tasks.dialogue.rollouts import ReplyRollouts, greedy_replies

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask

BATCH_PROMPTS, EVALUATION_STREAM = 64, 53


@torch.no_grad()
def evaluate(task: "DialogueTask", policy: Reader, data: DialogueData, rows: np.ndarray, *, seed: int, sets: int) -> pd.DataFrame:
    """Return one row per example and rule: ``policy`` (sampled; rewards are means over ``sets`` replies) and ``greedy``."""
    frames = []
    for number, start in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[start : start + BATCH_PROMPTS])
        context = task.encode(policy, batch)
        generator = step_generator(seed, number, stream=EVALUATION_STREAM, device=task.device)
        temperature = task.replies.temperature
        drawn = task.sample(policy, context, sets, temperature=temperature, proposal="policy", generator=generator)
        greedy = greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends)
        for rule, rollouts in (("policy", drawn), ("greedy", greedy)):
            frames.append(_rows(task, policy, data, batch, context, rollouts).assign(rule=rule))
    return pd.concat(frames, ignore_index=True).sort_values(["rule", "example_id"], ignore_index=True)


def _rows(
    task: "DialogueTask", policy: Reader, data: DialogueData, batch: DialogueBatch, context: Encoded, rollouts: ReplyRollouts
) -> pd.DataFrame:
    outcomes = task.decode(policy, context, rollouts, batch)
    first = [replies[0] for replies in outcomes.replies]
    parts, weights = task.reward(batch, rollouts, outcomes)
    table = data.examples.table.iloc[batch.rows.cpu().numpy()]
    frame = table[["example_id", "persona_id", "needs"]].reset_index(drop=True)
    frame = frame.assign(reply=first, **score_replies(first, batch.answers))
    frame["reward"] = combine_rewards(parts, weights).total.nanmean(1).cpu().numpy()
    return frame.assign(**{f"reward_{name}": part.nanmean(1).cpu().numpy() for name, part in parts.items()})
