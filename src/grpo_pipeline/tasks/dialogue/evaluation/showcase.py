"""Record replies to a few examples, as arrays of text for the report and as frames of the training."""

import numpy as np
import torch
from torch import Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.data.examples import first_answers
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import ReplyTask
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.frames import shown_rewards, text_tensor

SHOWN_SAMPLES = 4


@torch.no_grad()
def showcase(
    task: ReplyTask, policy: LanguageModel, data: DialogueData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Write ``example_id``, ``question``, ``answer`` and ``greedy`` [n], and ``replies`` [n, 4], as arrays of text."""
    batch = task.make_batch(data, rows)
    context = task.encode(policy, batch)
    generator = step_generator(seed, stream=Stream.SHOWCASE, device=task.device)
    sampled = task.sample(
        policy,
        context,
        SHOWN_SAMPLES,
        temperature=task.replies.temperature,
        proposal="policy",
        generator=generator,
    )
    greedy = greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends)
    table = data.examples.table.iloc[rows]
    return {
        "example_id": table["example_id"].to_numpy(str),
        "question": table["question"].to_numpy(str),
        "answer": np.asarray(first_answers(table), dtype=str),
        "greedy": np.asarray([replies[0] for replies in task.shown(greedy)], dtype=str),
        "replies": np.asarray([list(replies) for replies in task.shown(sampled)], dtype=str),
    }


@torch.no_grad()
def training_frame(
    task: ReplyTask, policy: LanguageModel, data: DialogueData, rows: np.ndarray, *, seed: int
) -> dict[str, Tensor]:
    """Draw a reply to each of these examples, with the same noise in every frame.

    ``question`` and ``reply`` are texts (``tasks.frames.text_tensor``), ``reward`` is float64 [m].
    """
    batch = task.make_batch(data, rows)
    generator = step_generator(seed, stream=Stream.FRAMES, device=task.device)
    rollouts = task.sample(
        policy,
        task.encode(policy, batch),
        1,
        temperature=task.replies.temperature,
        proposal="policy",
        generator=generator,
    )
    return {
        "question": text_tensor(data.examples.table["question"].iloc[rows].tolist()),
        "reply": text_tensor([printable(reply) for (reply,) in task.shown(rollouts)]),
        "reward": shown_rewards(task, policy, batch, rollouts)[:, 0],
    }
