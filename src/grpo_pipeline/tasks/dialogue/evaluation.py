"""Prediction rows of the dialogue task: what the trained policy, the start and rules without a model say to held-out examples.

Policy and start draw with the same noise, so that what training changed is compared draw by draw. Scores (``f1``, …) are those
of the first reply of a rule, as if it were the only one; rewards are means over all of its replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.tasks.columns import unscored_columns
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.diversity import self_bleu
from grpo_pipeline.tasks.dialogue.model_columns import Columns, kl_per_reply, reference_columns, reply_columns, without_model
from grpo_pipeline.tasks.dialogue.printable import printable
from grpo_pipeline.tasks.dialogue.reader import Encoded, Reader
from grpo_pipeline.tasks.dialogue.reply_scores import score_replies
from grpo_pipeline.tasks.dialogue.rewards import PendingRewards, submit_rewards
from grpo_pipeline.tasks.dialogue.rollouts import greedy_replies
from grpo_pipeline.tasks.dialogue.trivial import trivial_replies

if TYPE_CHECKING:
    from grpo_pipeline.tasks.dialogue.task import DialogueTask

BATCH_PROMPTS = 64


@dataclass(frozen=True)
class Said:
    """Replies of one baseline to P prompts.

    Attributes:
        replies: P groups of texts.
        rewards: being measured.
        columns: of ``model_columns``, each [P].
    """

    replies: Sequence[Sequence[str]]
    rewards: PendingRewards
    columns: Columns


@dataclass(frozen=True)
class Model:
    """A reader that has read the prompts of a batch.

    Attributes:
        reader: the policy, or the start.
        context: its reading.
        batch: the prompts.
    """

    reader: Reader
    context: Encoded
    batch: DialogueBatch

    @cached_property
    def known(self) -> Columns:
        """How well it predicts the references."""
        return reference_columns(self.reader, self.context, self.batch)


@torch.no_grad()
def evaluate(task: "DialogueTask", policy: Reader, data: DialogueData, rows: np.ndarray, *, seed: int, sets: int) -> pd.DataFrame:
    """Return one row per example and rule (columns: docs/architecture.md).

    Rules: ``policy`` and ``start`` (sampled as in training), ``greedy``, and those of ``trivial``.

    Args:
        task: the task; its ``start`` is the start, which replies once for all arms.
        policy: the arm's reader.
        data: the data set.
        rows: row numbers to evaluate, int64 [n].
        seed: of the sampled replies, and of the start where it is fresh weights.
        sets: number of sampled replies per example of the sampled rules.
    """
    start = task.build_policy(seed)
    table = data.examples.table
    training = [text for answers in table.loc[table["split"] == "train", "answers"] for text in answers]
    frames = []
    for number, first in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[first : first + BATCH_PROMPTS])
        examples = table.iloc[batch.rows.cpu().numpy()]
        trained, begun = (Model(reader, task.encode(reader, batch), batch) for reader in (policy, start))
        sample = partial(_sample, task, start=begun, sets=sets, seed=seed, number=number)
        said = {"policy": sample(trained), "greedy": _greedy(task, trained)} | _trivial(task, batch, examples, training)
        said["start"] = task.kept.take(data, (number, seed, sets, rows.tobytes()), partial(sample, begun))
        own = tuple(task.rewards.own_measures)
        frames += [prediction_rows(examples, batch, rule, one, own=own) for rule, one in said.items()]
    return pd.concat(frames, ignore_index=True).sort_values(["rule", "example_id"], ignore_index=True)


def _sample(task: "DialogueTask", model: Model, *, start: Model, sets: int, seed: int, number: int) -> Said:
    """Return what a model draws, with its KL from the start; the same seed and number of a batch give the same noise."""
    generator, temperature = step_generator(seed, number, stream=Stream.EVALUATION, device=task.device), task.replies.temperature
    drawn = task.sample(model.reader, model.context, sets, temperature=temperature, proposal="policy", generator=generator)
    said = _submit(task, model.batch, task.texts(drawn), model.known | reply_columns(task, drawn))
    alike = self_bleu(said.replies, smoothing=task.rewards.bleu_smoothing)
    return replace(said, columns=said.columns | {"self_bleu": alike, "kl_start": _kl(task, model, start, drawn)})


def _kl(task: "DialogueTask", model: Model, start: Model, drawn: Rollouts) -> np.ndarray:
    """Return the KL from the start of each prompt; both are scored alike, so that it is exactly 0 for equal weights."""
    if model is start:
        return np.zeros(len(drawn.actions))
    own, others = (task.score(one.reader, one.context, drawn, temperature=task.replies.temperature) for one in (model, start))
    return np.asarray(kl_per_reply(own.logprobs, others.logprobs, drawn.is_valid).cpu().numpy())


def _greedy(task: "DialogueTask", model: Model) -> Said:
    """Return the likeliest replies: no samples, and so without a KL and alone in their groups."""
    written = greedy_replies(model.reader, model.context, max_tokens=task.replies.max_tokens, ends=task.ends)
    nothing = without_model(len(model.context.start))
    return _submit(task, model.batch, task.texts(written), nothing | model.known | reply_columns(task, written))


def _submit(task: "DialogueTask", batch: DialogueBatch, replies: Sequence[Sequence[str]], columns: Columns) -> Said:
    """Begin to measure the rewards: the processes work while the next replies are written."""
    return Said(replies, submit_rewards(task.rewards, task.pool, replies=replies, answers=batch.answers), columns)


def _trivial(task: "DialogueTask", batch: DialogueBatch, examples: pd.DataFrame, training: Sequence[str]) -> dict[str, Said]:
    """Return what the rules without a model say."""
    written = trivial_replies(
        training, list(examples["context"]), personas=list(examples["persona"]), answers=list(examples["answers"])
    )
    return {
        rule: _submit(task, batch, [(reply,) for reply in replies], without_model(len(replies)))
        for rule, replies in written.items()
    }


def prediction_rows(
    examples: pd.DataFrame, batch: DialogueBatch, rule: str, said: Said, *, own: Sequence[str] = ()
) -> pd.DataFrame:
    """Return the rows of one rule, with what each of the user's ``own`` rewards left unscored; waits for the rewards."""
    first = [replies[0] for replies in said.replies]
    measured = said.rewards.result()
    total = combine_rewards(measured.parts, measured.weights).total
    found = [story in ids if story else np.nan for story, ids in zip(examples["story_id"], examples["story_ids"], strict=True)]
    return (
        examples[["example_id", "persona_id", "needs"]]
        .reset_index(drop=True)
        .assign(
            rule=rule,
            reply=[printable(reply) for reply in first],
            **score_replies(first, batch.answers),
            **said.columns,
            reward=total.nanmean(dim=1).numpy(),
            **{f"reward_{name}": part.nanmean(dim=1).numpy() for name, part in measured.parts.items()},
            **unscored_columns({name: measured.parts[name].numpy() for name in own}, np.ones(total.shape, dtype=bool)),
            story_found=np.asarray(found, dtype=np.float64),
        )
    )
