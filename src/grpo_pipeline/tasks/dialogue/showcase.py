"""Replies to a few examples, as arrays of text for the report."""

from typing import TYPE_CHECKING

import numpy as np
import torch

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.reader import Reader
from grpo_pipeline.tasks.dialogue.rollouts import greedy_replies

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask

SHOWN_SAMPLES = 4


@torch.no_grad()
def showcase(task: "DialogueTask", policy: Reader, data: DialogueData, rows: np.ndarray, *, seed: int) -> dict[str, np.ndarray]:
    """Return ``example_id``, ``question``, ``answer`` and ``greedy`` [n], and ``replies`` [n, 4], as arrays of text."""
    batch = task.make_batch(data, rows)
    context = task.encode(policy, batch)
    generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
    drawn = task.sample(
        policy, context, SHOWN_SAMPLES, temperature=task.replies.temperature, proposal="policy", generator=generator
    )
    greedy = greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends)
    table = data.examples.table.iloc[rows]
    return {
        "example_id": table["example_id"].to_numpy(str),
        "question": table["question"].to_numpy(str),
        "answer": np.asarray([texts[0] for texts in table["answers"]], dtype=str),
        "greedy": np.asarray([replies[0] for replies in task.texts(greedy)], dtype=str),
        "replies": np.asarray([list(replies) for replies in task.texts(drawn)], dtype=str),
    }
