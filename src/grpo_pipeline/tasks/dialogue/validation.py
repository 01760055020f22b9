"""A few cheap numbers on held-out prompts to watch while training."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.reader import Reader
from grpo_pipeline.tasks.dialogue.reference_reply import Perplexity, reference_perplexity

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask

BATCH_PROMPTS = 64


@torch.no_grad()
def validate(
    task: "DialogueTask", policy: Reader, data: DialogueData, rows: np.ndarray, *, seed: int, sets: int
) -> dict[str, float]:
    """Return means over the sampled replies of held-out prompts, and the perplexity of their first references.

    Keys: ``reward/mean``, ``reward/<part>/mean`` (NaN where nothing could be measured), ``reply/tokens``, ``reply/ended`` and
    ``reference/perplexity``. Replies are drawn at ``dialogue.replies.temperature``, with the same noise whenever it is called.
    """
    found: dict[str, list[Tensor]] = {}
    nll, tokens = 0.0, 0.0
    for number, batch in enumerate(_batches(task, data, rows)):
        generator = step_generator(seed, number, stream=Stream.VALIDATION, device=task.device)
        measured, perplexity = _measure(task, policy, batch, sets, generator)
        for name, values in measured.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
        nll, tokens = nll + float(perplexity.nll.sum()), tokens + float(perplexity.tokens.sum())
    means = {name: float(torch.cat(values).nanmean()) for name, values in found.items()}
    return means | {"reference/perplexity": float(np.exp(nll / tokens))}


def _batches(task: "DialogueTask", data: DialogueData, rows: np.ndarray) -> Iterator[DialogueBatch]:
    for start in range(0, len(rows), BATCH_PROMPTS):
        yield task.make_batch(data, rows[start : start + BATCH_PROMPTS])


def _measure(
    task: "DialogueTask", policy: Reader, batch: DialogueBatch, sets: int, generator: Generator
) -> tuple[dict[str, Tensor], Perplexity]:
    context = task.encode(policy, batch)
    temperature = task.replies.temperature
    rollouts = task.sample(policy, context, sets, temperature=temperature, proposal="policy", generator=generator)
    outcomes = task.decode(policy, context, rollouts, batch)
    perplexity = reference_perplexity(policy, context, batch.reference)
    parts, weights = task.reward(batch, rollouts, outcomes)
    ended = ((rollouts.actions == task.ends[0]) & rollouts.is_valid).any(dim=-1)
    measured = {"reward/mean": combine_rewards(parts, weights).total}
    measured |= {f"reward/{name}/mean": part for name, part in parts.items()}
    return measured | {"reply/tokens": rollouts.is_valid.sum(dim=-1), "reply/ended": ended}, perplexity
