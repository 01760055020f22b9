"""Score held-out examples: replies of the trained policy, the initial policy and baselines without a model.

Policy and start draw with the same noise, so that the effect of training is compared draw by draw. Scores (``f1``, …) are those
of a rule's first reply. Rewards are means over all of its replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.group_rewards import PendingRewards
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.unscored_rewards import unscored_columns
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.data.hidden_characters import printable
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.evaluation.accuracy import accuracy_columns
from grpo_pipeline.tasks.dialogue.evaluation.prediction_columns import (
    RECALL,
    Columns,
    kl_per_reply,
    reply_columns,
    without_model,
)
from grpo_pipeline.tasks.dialogue.evaluation.reply_task import BATCH_PROMPTS, ReplyTask
from grpo_pipeline.tasks.dialogue.evaluation.trivial_rules import training_texts, trivial_replies
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import reference_perplexity
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import submit_rewards
from grpo_pipeline.tasks.dialogue.scores.diversity import self_bleu
from grpo_pipeline.tasks.dialogue.scores.score_table import score_replies


@dataclass(frozen=True)
class Said:
    """Replies of a rule to P prompts.

    Attributes:
        replies: P groups of texts.
        rewards: rewards, which are still being measured.
        columns: columns of ``reply_columns``, each [P].
        stories: ids of the stories that a retriever chose, text [P, n]; None where the data hold them.
    """

    replies: Sequence[Sequence[str]]
    rewards: PendingRewards
    columns: Columns
    stories: np.ndarray | None = None


@dataclass(frozen=True)
class Model:
    """A language model that has read the prompts of a batch.

    Attributes:
        language_model: the policy, or the start.
        context: its encoding.
        batch: the prompts.
    """

    language_model: LanguageModel
    context: Encoded
    batch: DialogueBatch

    @property
    def stories(self) -> np.ndarray | None:
        """Return the ids of the stories that its retriever chose, text [P, n]; None without one."""
        if self.language_model.retriever is None or self.context.stories is None:
            return None
        return self.language_model.retriever.shelf.ids(self.context.stories.cpu().numpy())

    @cached_property
    def known(self) -> Columns:
        """Compute how well the model predicts the references; NaN without any."""
        if self.batch.reference is None:
            nothing = np.full(len(self.batch.rows), np.nan)
            return {"reference_nll": nothing, "reference_tokens": nothing}
        # reference_nll in nats and reference_tokens of each prompt's first reference.
        found = reference_perplexity(self.language_model, self.context, self.batch.reference)
        return {
            "reference_nll": found.nll.cpu().numpy(),
            "reference_tokens": found.tokens.cpu().numpy(),
        }


@torch.no_grad()
def evaluate(
    task: ReplyTask,
    policy: LanguageModel,
    data: DialogueData,
    rows: np.ndarray,
    *,
    seed: int,
    n_samples: int,
) -> pd.DataFrame:
    """Write and score replies to held-out examples: a row per example and rule (columns: docs/dialogue/artefacts.md).

    Rules: ``policy`` and ``start`` (sampled as in training), ``greedy``, and those of ``trivial_rules``.

    Args:
        task: the task; its initial policy replies once for all arms.
        policy: the arm's language model.
        data: the data set.
        rows: row numbers to evaluate, int64 [n].
        seed: seed of the sampled replies, and of fresh initial weights.
        n_samples: number of sampled replies per example of the sampled rules.
    """
    start = task.build_policy(seed)
    table = data.examples.table
    training = training_texts(table)
    frames = []
    for number, first in enumerate(track(range(0, len(rows), BATCH_PROMPTS), "evaluate dialogue")):
        batch = task.make_batch(data, rows[first : first + BATCH_PROMPTS])
        examples = table.iloc[batch.rows.cpu().numpy()]
        trained, begun = (
            Model(language_model, task.encode(language_model, batch), batch)
            for language_model in (policy, start)
        )
        sample = partial(_sample, task, start=begun, n_samples=n_samples, seed=seed, number=number)
        said = {"policy": sample(trained), "greedy": _greedy(task, trained)} | _trivial(
            task, batch, examples, training
        )
        said["start"] = task.cache.take(
            data, (number, seed, n_samples, rows.tobytes()), partial(sample, begun)
        )
        frames += [
            prediction_rows(examples, batch, rule, one, rewards=task.rewards, n_samples=n_samples)
            for rule, one in said.items()
        ]
    return pd.concat(frames, ignore_index=True).sort_values(
        ["rule", "example_id"], ignore_index=True
    )


def _sample(
    task: ReplyTask, model: Model, *, start: Model, n_samples: int, seed: int, number: int
) -> Said:
    """Sample replies of a model, with its KL from the start; ``seed`` and ``number`` fix the noise."""
    generator, temperature = (
        step_generator(seed, number, stream=Stream.EVALUATION, device=task.device),
        task.replies.temperature,
    )
    sampled = task.sample(
        model.language_model,
        model.context,
        n_samples,
        temperature=temperature,
        proposal="policy",
        generator=generator,
    )
    said = _submit(
        task, model.batch, task.texts(sampled), model.known | reply_columns(task, sampled)
    )
    alike = self_bleu(said.replies)
    return replace(
        said,
        columns=said.columns | {"self_bleu": alike, "kl_start": _kl(task, model, start, sampled)},
        stories=model.stories,
    )


def _kl(task: ReplyTask, model: Model, start: Model, sampled: Rollouts) -> np.ndarray:
    """Compute the KL from the start for each prompt; both are scored alike, so that equal weights give exactly 0."""
    if model is start:
        return np.zeros(len(sampled.actions))
    # Where a retriever chooses, the start reads what the policy has read: otherwise the KL would be that of other stories.
    begun = start.context
    if model.context.stories is not None:
        begun = task.read(start.language_model, start.batch, model.context.stories)
    own, others = (
        task.score(language_model, context, sampled, temperature=task.replies.temperature)
        for language_model, context in (
            (model.language_model, model.context),
            (start.language_model, begun),
        )
    )
    return np.asarray(kl_per_reply(own.logprobs, others.logprobs, sampled.is_valid).cpu().numpy())


def _greedy(task: ReplyTask, model: Model) -> Said:
    """Write the likeliest replies, which have no KL and no group, because they are no samples."""
    written = greedy_replies(
        model.language_model, model.context, max_tokens=task.replies.max_tokens, ends=task.ends
    )
    nothing = without_model(len(model.context.start))
    said = _submit(
        task, model.batch, task.texts(written), nothing | model.known | reply_columns(task, written)
    )
    return replace(said, stories=model.stories)


def _submit(
    task: ReplyTask, batch: DialogueBatch, replies: Sequence[Sequence[str]], columns: Columns
) -> Said:
    """Begin to measure the rewards, while the next replies are written."""
    return Said(
        replies,
        submit_rewards(
            task.rewards,
            task.pool,
            replies=replies,
            answers=batch.answers,
            questions=batch.questions,
            cells=batch.cells,
        ),
        columns,
    )


def _trivial(
    task: ReplyTask, batch: DialogueBatch, examples: pd.DataFrame, training: Sequence[str]
) -> dict[str, Said]:
    """Write the replies of the rules without a model."""
    written = trivial_replies(
        training,
        list(examples["context"]),
        personas=list(examples["persona"]),
        answers=None if batch.reference is None else list(examples["answers"]),
    )
    return {
        rule: _submit(task, batch, [(reply,) for reply in replies], without_model(len(replies)))
        for rule, replies in written.items()
    }


def prediction_rows(
    examples: pd.DataFrame,
    batch: DialogueBatch,
    rule: str,
    said: Said,
    *,
    rewards: DialogueReward,
    n_samples: int,
) -> pd.DataFrame:
    """Build the rows of a rule, with the samples that user-defined rewards left unscored; waits for the rewards."""
    first = [replies[0] for replies in said.replies]
    measured = said.rewards.result()
    total = combine_rewards(measured.components, measured.weights).total
    read = examples["story_ids"] if said.stories is None else said.stories
    pairs = list(zip(examples["story_id"], read, strict=True))
    found = [story in ids if story else np.nan for story, ids in pairs]
    recalled = [float(story in ids[:1]) if story else np.nan for story, ids in pairs]
    return (
        examples[["example_id", "subject_id", "needs"]]
        .reset_index(drop=True)
        .assign(
            rule=rule,
            reply=[printable(reply) for reply in first],
            **score_replies(first, batch.answers),
            **said.columns,
            reward=total.nanmean(dim=1).numpy(),
            **{
                f"reward_{name}": component.nanmean(dim=1).numpy()
                for name, component in measured.components.items()
            },
            **accuracy_columns(rewards, said.replies, measured.components, n_samples=n_samples),
            **unscored_columns(
                {name: measured.components[name].numpy() for name in rewards.own},
                np.ones(total.shape, dtype=bool),
            ),
            story_found=np.asarray(found, dtype=np.float64),
            **({} if said.stories is None else {RECALL: recalled}),
        )
    )
