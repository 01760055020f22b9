"""Measure a few cheap numbers on held-out prompts, to watch training."""

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import BATCH_PROMPTS, ReplyTask
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import has_ended
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import (
    Perplexity,
    reference_perplexity,
)
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever


@torch.no_grad()
def validate(
    task: ReplyTask,
    policy: LanguageModel,
    data: DialogueData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> dict[str, float]:
    """Compute means over the sampled replies of held-out prompts, and the perplexity of their first references.

    Keys: ``reward/mean``, ``reward/<component>/mean`` (NaN where nothing could be measured), ``reply/tokens``, ``reply/ended``,
    where there are answers ``reference/perplexity``, and of a retriever ``retriever/recall_at_1``. Replies are drawn at
    ``dialogue.replies.temperature``, with the same noise whenever it is called.
    """
    found: dict[str, list[Tensor]] = {}
    nll, tokens = 0.0, 0.0
    for number, first in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[first : first + BATCH_PROMPTS])
        generator = step_generator(seed, number, stream=Stream.VALIDATION, device=task.device)
        measured, perplexity = _measure(task, policy, batch, n_samples, generator)
        for name, values in measured.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
        if perplexity is not None:
            nll, tokens = nll + float(perplexity.nll.sum()), tokens + float(perplexity.tokens.sum())
    means = {name: float(torch.cat(values).nanmean()) for name, values in found.items()}
    if policy.retriever is not None:
        means |= _recall(policy.retriever, data.examples.table.iloc[rows])
    return means | ({"reference/perplexity": float(np.exp(nll / tokens))} if tokens else {})


def _recall(retriever: Retriever, examples: pd.DataFrame) -> dict[str, float]:
    """Measure how often the first story of the index is the one that a reply needs; empty where none is known to need one."""
    needing = examples[examples["story_id"] != ""]
    if needing.empty:
        return {}
    chosen = retriever.choose(retriever.shelf.asked(needing))[:, 0].cpu().numpy()
    return {
        "retriever/recall_at_1": float((retriever.shelf.ids(chosen) == needing["story_id"]).mean())
    }


def _measure(
    task: ReplyTask,
    policy: LanguageModel,
    batch: DialogueBatch,
    n_samples: int,
    generator: Generator,
) -> tuple[dict[str, Tensor], Perplexity | None]:
    context = task.encode(policy, batch)
    temperature = task.replies.temperature
    rollouts = task.sample(
        policy, context, n_samples, temperature=temperature, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, rollouts, batch)
    perplexity = (
        None if batch.reference is None else reference_perplexity(policy, context, batch.reference)
    )
    parts, weights = task.reward(batch, rollouts, outcomes)
    measured = {"reward/mean": combine_rewards(parts, weights).total}
    measured |= {f"reward/{name}/mean": part for name, part in parts.items()}
    return measured | {
        "reply/tokens": rollouts.is_valid.sum(dim=-1),
        "reply/ended": has_ended(rollouts, task.ends),
    }, perplexity
