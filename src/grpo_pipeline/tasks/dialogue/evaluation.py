"""Score held-out examples: replies of the trained policy, the initial policy and baselines without a model.

Policy and start draw with the same noise, so that what training changed is compared draw by draw. Scores (``f1``, …) are those
of the first reply of a rule, as if it were the only one; rewards are means over all of its replies.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import numpy as np
import pandas as pd
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.policy_gradient.kl import k3
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import Rollouts
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.runs.progress import track
from grpo_pipeline.statistics.unscored_rewards import unscored_columns
from grpo_pipeline.tasks.base import Task
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch, DialogueData
from grpo_pipeline.tasks.dialogue.data.text_files import printable
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.params import ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies, is_end
from grpo_pipeline.tasks.dialogue.language_model.scoring import Perplexity, reference_perplexity
from grpo_pipeline.tasks.dialogue.params import RewardParams
from grpo_pipeline.tasks.dialogue.rewards import PendingRewards, submit_rewards
from grpo_pipeline.tasks.dialogue.scores import score_replies, self_bleu
from grpo_pipeline.tasks.dialogue.warning_signs import trivial_replies
from grpo_pipeline.tasks.frames import shown_rewards, text_tensor
from grpo_pipeline.tasks.shared import Cache


class ReplyTask(Task, Protocol):
    """A task whose samples are replies: what scoring them asks for beside the protocol of every task."""

    @property
    def replies(self) -> ReplyParams:
        """How replies are drawn."""
        ...

    @property
    def rewards(self) -> RewardParams:
        """Parts of the reward and their weights."""
        ...

    @property
    def pool(self) -> RewardPool:
        """Measures the rewards."""
        ...

    @property
    def cache(self) -> Cache:
        """The start's replies, once they were drawn."""
        ...

    @property
    def ends(self) -> tuple[int, ...]:
        """(*end_ids, pad_id)."""
        ...

    def build_policy(self, seed: int) -> LanguageModel:
        """Return a language model with the weights that training begins with."""
        ...

    def texts(self, rollouts: Rollouts) -> PerPrompt:
        """Return the replies as texts: of each prompt a tuple of G."""
        ...


# Columns of prediction rows beside a reply and its scores: how the reply ended, what the model knows, how far it went.

Columns = dict[str, np.ndarray]
MODEL_COLUMNS = ("tokens", "ended", "self_bleu", "reference_nll", "reference_tokens", "kl_start")


def reply_columns(task: ReplyTask, rollouts: Rollouts) -> Columns:
    """Return ``tokens`` and ``ended`` of each prompt's first reply."""
    actions, is_valid = rollouts.actions[:, 0], rollouts.is_valid[:, 0]
    ended = (is_end(actions, task.ends) & is_valid).any(dim=-1)
    return {
        "tokens": is_valid.sum(dim=-1).cpu().numpy(),
        "ended": ended.to(torch.float64).cpu().numpy(),
    }


def kl_per_reply(logprobs: Tensor, start_logprobs: Tensor, is_valid: Tensor) -> Tensor:
    """Return KL(policy || start) of each prompt in nats per reply, float64 [P].

        kl[p] = mean over g of sum over valid t of k3[p, g, t]

    The replies must be the policy's own samples. k3 of a token is unbiased for the KL of its decision, given what stands before
    it, and so the sum is for the KL of whole replies. Exactly 0 where both are the same numbers.

    Args:
        logprobs: [P, G, L] of the policy, of the distribution that was sampled.
        start_logprobs: [P, G, L] of the start, over the same choices.
        is_valid: bool [P, G, L].
    """
    estimate = torch.where(is_valid, k3(logprobs.double(), start_logprobs.double()), 0.0)
    return estimate.sum(dim=-1).mean(dim=-1)


def without_model(prompts: int) -> Columns:
    """Return the columns of a rule that has no model: NaN."""
    return {name: np.full(prompts, np.nan) for name in MODEL_COLUMNS}


BATCH_PROMPTS = 64


@dataclass(frozen=True)
class Said:
    """Replies of one baseline to P prompts.

    Attributes:
        replies: P groups of texts.
        rewards: being measured.
        columns: of ``reply_columns``, each [P].
    """

    replies: Sequence[Sequence[str]]
    rewards: PendingRewards
    columns: Columns


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

    @cached_property
    def known(self) -> Columns:
        """How well it predicts the references."""
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
    """Return one row per example and rule (columns: docs/architecture.md).

    Rules: ``policy`` and ``start`` (sampled as in training), ``greedy``, and those of ``trivial``.

    Args:
        task: the task; its ``start`` is the start, which replies once for all arms.
        policy: the arm's language model.
        data: the data set.
        rows: row numbers to evaluate, int64 [n].
        seed: of the sampled replies, and of the start where it is fresh weights.
        n_samples: number of sampled replies per example of the sampled rules.
    """
    start = task.build_policy(seed)
    table = data.examples.table
    training = [
        text for answers in table.loc[table["split"] == "train", "answers"] for text in answers
    ]
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
        own = tuple(task.rewards.own_measures)
        frames += [
            prediction_rows(examples, batch, rule, one, own=own) for rule, one in said.items()
        ]
    return pd.concat(frames, ignore_index=True).sort_values(
        ["rule", "example_id"], ignore_index=True
    )


def _sample(
    task: ReplyTask, model: Model, *, start: Model, n_samples: int, seed: int, number: int
) -> Said:
    """Return what a model draws, with its KL from the start; the same seed and number of a batch give the same noise."""
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
    alike = self_bleu(said.replies, smoothing=task.rewards.bleu_smoothing)
    return replace(
        said,
        columns=said.columns | {"self_bleu": alike, "kl_start": _kl(task, model, start, sampled)},
    )


def _kl(task: ReplyTask, model: Model, start: Model, sampled: Rollouts) -> np.ndarray:
    """Return the KL from the start of each prompt; both are scored alike, so that it is exactly 0 for equal weights."""
    if model is start:
        return np.zeros(len(sampled.actions))
    own, others = (
        task.score(one.language_model, one.context, sampled, temperature=task.replies.temperature)
        for one in (model, start)
    )
    return np.asarray(kl_per_reply(own.logprobs, others.logprobs, sampled.is_valid).cpu().numpy())


def _greedy(task: ReplyTask, model: Model) -> Said:
    """Return the likeliest replies: no samples, and so without a KL and alone in their groups."""
    written = greedy_replies(
        model.language_model, model.context, max_tokens=task.replies.max_tokens, ends=task.ends
    )
    nothing = without_model(len(model.context.start))
    return _submit(
        task, model.batch, task.texts(written), nothing | model.known | reply_columns(task, written)
    )


def _submit(
    task: ReplyTask, batch: DialogueBatch, replies: Sequence[Sequence[str]], columns: Columns
) -> Said:
    """Begin to measure the rewards: the processes work while the next replies are written."""
    return Said(
        replies,
        submit_rewards(
            task.rewards,
            task.pool,
            replies=replies,
            answers=batch.answers,
            questions=batch.questions,
        ),
        columns,
    )


def _trivial(
    task: ReplyTask, batch: DialogueBatch, examples: pd.DataFrame, training: Sequence[str]
) -> dict[str, Said]:
    """Return what the rules without a model say."""
    written = trivial_replies(
        training,
        list(examples["context"]),
        personas=list(examples["persona"]),
        answers=list(examples["answers"]),
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
    total = combine_rewards(measured.components, measured.weights).total
    found = [
        story in ids if story else np.nan
        for story, ids in zip(examples["story_id"], examples["story_ids"], strict=True)
    ]
    return (
        examples[["example_id", "persona_id", "needs"]]
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
            **unscored_columns(
                {name: measured.components[name].numpy() for name in own},
                np.ones(total.shape, dtype=bool),
            ),
            story_found=np.asarray(found, dtype=np.float64),
        )
    )


# Sampled replies as a table that a person reads.


def tabulate(
    task: ReplyTask, data: DialogueData, batch: DialogueBatch, rollouts: Rollouts
) -> pd.DataFrame:
    """Return one row per reply, n = p*G + g.

    Columns: ``example_id``, ``persona_id``, ``needs``, ``question``, ``answer`` (the first one), ``group`` (row number of the
    example in the data), ``sample`` (g), ``reply``, ``tokens`` (the end included) and ``ended`` (0 where the reply was cut).
    """
    prompts, group_size, _ = rollouts.actions.shape
    rows = batch.rows.reshape(prompts, -1)[:, 0].cpu().numpy().repeat(group_size)
    table = data.examples.table.iloc[rows].reset_index(drop=True)
    ended = (is_end(rollouts.actions, task.ends) & rollouts.is_valid).any(dim=-1)
    frame = table[["example_id", "persona_id", "needs", "question"]].copy()
    return frame.assign(
        answer=[texts[0] for texts in table["answers"]],
        group=rows,
        sample=np.tile(np.arange(group_size), prompts),
        reply=[printable(reply) for replies in task.texts(rollouts) for reply in replies],
        tokens=rollouts.is_valid.sum(dim=-1).flatten().cpu().numpy(),
        ended=ended.flatten().long().cpu().numpy(),
    )


# Replies to a few examples, as arrays of text for the report.

SHOWN_SAMPLES = 4


@torch.no_grad()
def showcase(
    task: ReplyTask, policy: LanguageModel, data: DialogueData, rows: np.ndarray, *, seed: int
) -> dict[str, np.ndarray]:
    """Return ``example_id``, ``question``, ``answer`` and ``greedy`` [n], and ``replies`` [n, 4], as arrays of text."""
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
        "answer": np.asarray([texts[0] for texts in table["answers"]], dtype=str),
        "greedy": np.asarray([replies[0] for replies in task.texts(greedy)], dtype=str),
        "replies": np.asarray([list(replies) for replies in task.texts(sampled)], dtype=str),
    }


@torch.no_grad()
def training_frame(
    task: ReplyTask, policy: LanguageModel, data: DialogueData, rows: np.ndarray, *, seed: int
) -> dict[str, Tensor]:
    """Return one reply to each of these examples, drawn with the same noise in every frame.

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
        "reply": text_tensor([printable(reply) for (reply,) in task.texts(rollouts)]),
        "reward": shown_rewards(task, policy, batch, rollouts)[:, 0],
    }


# A few cheap numbers on held-out prompts to watch while training.


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
    """Return means over the sampled replies of held-out prompts, and the perplexity of their first references.

    Keys: ``reward/mean``, ``reward/<component>/mean`` (NaN where nothing could be measured), ``reply/tokens``, ``reply/ended``
    and ``reference/perplexity``. Replies are drawn at ``dialogue.replies.temperature``, with the same noise whenever it is
    called.
    """
    found: dict[str, list[Tensor]] = {}
    nll, tokens = 0.0, 0.0
    for number, first in enumerate(range(0, len(rows), BATCH_PROMPTS)):
        batch = task.make_batch(data, rows[first : first + BATCH_PROMPTS])
        generator = step_generator(seed, number, stream=Stream.VALIDATION, device=task.device)
        measured, perplexity = _measure(task, policy, batch, n_samples, generator)
        for name, values in measured.items():
            found.setdefault(name, []).append(values.double().flatten().cpu())
        nll, tokens = nll + float(perplexity.nll.sum()), tokens + float(perplexity.tokens.sum())
    means = {name: float(torch.cat(values).nanmean()) for name, values in found.items()}
    return means | {"reference/perplexity": float(np.exp(nll / tokens))}


def _measure(
    task: ReplyTask,
    policy: LanguageModel,
    batch: DialogueBatch,
    n_samples: int,
    generator: Generator,
) -> tuple[dict[str, Tensor], Perplexity]:
    context = task.encode(policy, batch)
    temperature = task.replies.temperature
    rollouts = task.sample(
        policy, context, n_samples, temperature=temperature, proposal="policy", generator=generator
    )
    outcomes = task.decode(policy, context, rollouts, batch)
    perplexity = reference_perplexity(policy, context, batch.reference)
    parts, weights = task.reward(batch, rollouts, outcomes)
    ended = (is_end(rollouts.actions, task.ends) & rollouts.is_valid).any(dim=-1)
    measured = {"reward/mean": combine_rewards(parts, weights).total}
    measured |= {f"reward/{name}/mean": part for name, part in parts.items()}
    return measured | {
        "reply/tokens": rollouts.is_valid.sum(dim=-1),
        "reply/ended": ended,
    }, perplexity
