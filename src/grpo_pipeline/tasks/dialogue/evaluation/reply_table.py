"""Tabulate sampled replies for people."""

import numpy as np
import pandas as pd

from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.data.examples import first_answers
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import ReplyTask
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import has_ended


def tabulate(
    task: ReplyTask, data: DialogueData, batch: DialogueBatch, rollouts: Rollouts
) -> pd.DataFrame:
    """Tabulate the replies, row n = p*G + g.

    Columns: ``example_id``, ``subject_id``, ``needs``, ``question``, ``answer`` (the first), ``group`` (row number of the example
    in the data), ``sample`` (g), ``reply``, ``tokens`` (the end included) and ``ended`` (0 if the reply was cut).
    """
    prompts, group_size, _ = rollouts.actions.shape
    rows = batch.rows.reshape(prompts, -1)[:, 0].cpu().numpy().repeat(group_size)
    table = data.examples.table.iloc[rows].reset_index(drop=True)
    ended = has_ended(rollouts, task.ends)
    frame = table[["example_id", "subject_id", "needs", "question"]].copy()
    return frame.assign(
        answer=first_answers(table),
        group=rows,
        sample=np.tile(np.arange(group_size), prompts),
        reply=[printable(reply) for replies in task.shown(rollouts) for reply in replies],
        tokens=rollouts.is_valid.sum(dim=-1).flatten().cpu().numpy(),
        ended=ended.flatten().long().cpu().numpy(),
    )
