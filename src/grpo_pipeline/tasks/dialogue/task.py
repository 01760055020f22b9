"""Implement the dialogue task: a language model writes G replies to a prompt; rewards compare them with answers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from grpo_pipeline.core.agreement import decisive
from grpo_pipeline.core.groups import replicate
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.storage.weights import ModelWeights, digest_of_tensors
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.rehearsal import TRIED, try_rewards
from grpo_pipeline.rewards.shares import RewardShare
from grpo_pipeline.tasks.audit_plan import AuditPlan
from grpo_pipeline.tasks.base import BaseTask, Proposal
from grpo_pipeline.tasks.cache import Cache
from grpo_pipeline.tasks.dialogue.algorithm_checks import (
    check_algorithm,
    check_credit,
    check_engine,
)
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch, Outcomes, make_batch
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.episodes.conversations import Stage, replies_of, shown
from grpo_pipeline.tasks.dialogue.episodes.environment import digest_of
from grpo_pipeline.tasks.dialogue.episodes.stages import stages_of
from grpo_pipeline.tasks.dialogue.episodes.turns import paid_before, turns_of
from grpo_pipeline.tasks.dialogue.evaluation import audit
from grpo_pipeline.tasks.dialogue.evaluation.evaluate import evaluate
from grpo_pipeline.tasks.dialogue.evaluation.reply_table import tabulate
from grpo_pipeline.tasks.dialogue.evaluation.showcase import showcase, training_frame
from grpo_pipeline.tasks.dialogue.evaluation.validation import validate
from grpo_pipeline.tasks.dialogue.folder_digest import describe_language_model
from grpo_pipeline.tasks.dialogue.generation.draw import draw_by_engine
from grpo_pipeline.tasks.dialogue.huggingface_folder import (
    ADAPTER,
    FOLDER,
    has_updates,
    write_adapter,
    write_huggingface,
)
from grpo_pipeline.tasks.dialogue.language_model.base import Encoded, LanguageModel, detached
from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams, ReplyParams
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import ModelKind
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import (
    ReplyRollouts,
    in_groups,
    nothing_written,
    rows_of,
)
from grpo_pipeline.tasks.dialogue.language_model.sampling import sample_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import score_replies
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import (
    reference_logprobs,
    reference_loss,
)
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokenizer, Tokens, decode_rows
from grpo_pipeline.tasks.dialogue.parameter_groups import parameter_groups
from grpo_pipeline.tasks.dialogue.params import PromptParams, SupervisedParams
from grpo_pipeline.tasks.dialogue.retriever.reading import (
    choose_stories,
    prompts_with,
    retriever_loss,
    reward_stories,
)
from grpo_pipeline.tasks.dialogue.retriever.shelf import SHELF_FOLDER, StoryShelf
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import gather_rewards, submit_rewards
from grpo_pipeline.tasks.dialogue.rewards.right_answers import check_right_answers


@dataclass(frozen=True)
class DialogueTask(BaseTask):
    """The dialogue task, in which a sample is a reply (L = tokens of a reply, V = ids of the embedding).

    Attributes:
        start: initial weights of every policy; None for fresh ones, or those of the language model's folder.
        pool: measures the rewards; its processes end with the last holder of the task.
        shelf: the stories that the retriever of the policies chooses from; None without one.
        prompt_column: what the data of the training call a question.
        cache: the start's replies to held-out prompts.
    """

    language_model: LanguageModelParams
    prompt: PromptParams
    replies: ReplyParams
    rewards: DialogueReward
    supervised: SupervisedParams
    device: torch.device
    tokenizer: Tokenizer
    kind: ModelKind
    pool: RewardPool = field(repr=False)
    start: ModelWeights | None = field(default=None, repr=False)
    shelf: StoryShelf | None = field(default=None, repr=False, compare=False)
    # Before the arms the stories that the right answers find are read, and the retriever does not learn.
    reads_by_answers: bool = False
    # Each copy has its own: see Cache.
    cache: Cache = field(init=False, default_factory=Cache, repr=False, compare=False)
    prompt_column: str = field(default="question", compare=False)
    name: str = "dialogue"
    components: ClassVar[tuple[str, ...]] = ("embeddings", "encoder", "decoder", "retriever")
    section_fields: ClassVar[Mapping[str, str]] = {"reward": "rewards"}

    @property
    def ends(self) -> tuple[int, ...]:
        """(*end_ids, pad_id)."""
        return *self.tokenizer.end_ids, self.tokenizer.pad_id

    @property
    def shown_temperature(self) -> float:
        """Temperature of validation and evaluation."""
        return self.replies.temperature

    def check_algorithm(self, algorithm: AlgorithmParams) -> None:
        """Refuse a value baseline, random replies, the exact KL, credit of one turn, an engine that cannot draw for the arm."""
        super().check_algorithm(algorithm)
        check_algorithm(algorithm)
        check_credit(algorithm, has_environment=self.rewards.environment is not None)
        check_engine(
            self.replies,
            algorithm,
            network=self.language_model.network.kind,
            kind=self.kind,
            has_environment=self.rewards.environment is not None,
        )

    def check_data(self, data: DialogueData) -> None:
        """Call user-defined rewards on a few reference replies, and the others on all; raises as the two checks."""
        table = data.examples.table
        tried = table[table["split"] == "train"][:TRIED]
        answers = [list(texts) for texts in tried["answers"]]
        # Without answers, prompts are texts as good as any.
        given = zip(answers, tried["question"], strict=True)
        replies = [texts[-1] if texts else question for texts, question in given]
        try_rewards(
            self.rewards.own_measures,
            self.pool,
            subjects=replies,
            references=answers,
            task=self.name,
            prompts=list(tried["question"]),
            cells=list(tried["columns"]),
        )
        check_right_answers(self.rewards, self.pool, table)

    def build_policy(self, seed: int) -> LanguageModel:
        """Build a model with the weights of ``start``, of its folder, or fresh ones; the global random state stays unchanged."""
        policy = build_language_model(self.language_model, seed=seed)[0]
        if self.prompt.retriever is not None and self.shelf is not None:
            policy.retriever = Retriever(self.prompt.retriever, self.shelf, seed=seed)
        if self.start is not None:
            policy.load_state_dict(dict(self.start.tensors))
        return policy.to(self.device)

    def open_stage(self, stage: str) -> "DialogueTask":
        """Return the task of the warm start: with a retriever, the language model learns to read before that learns to find."""
        return replace(self, reads_by_answers=True)

    def begin_with(self, start: ModelWeights) -> "DialogueTask":
        """Store these weights as the initial ones; from here on the retriever learns, too."""
        return replace(self, start=start, reads_by_answers=False)

    @property
    def repeats_prompts(self) -> bool:
        """State whether a row is read with the same stories in every batch."""
        return self.prompt.retriever is None

    def parameter_groups(self, policy: LanguageModel) -> dict[str, list[nn.Parameter]]:
        """Return the trainable parameters of embeddings, encoder and decoder."""
        return parameter_groups(policy)

    def rows(self, data: DialogueData, split: str) -> np.ndarray:
        """Return the row numbers of a split."""
        return np.flatnonzero(data.examples.table["split"].to_numpy() == split)

    def make_batch(
        self, data: DialogueData, rows: np.ndarray, *, generator: Generator | None = None
    ) -> DialogueBatch:
        """Build the batch of these rows; a generator draws the reference reply among the answers."""
        return make_batch(
            data,
            rows,
            kind=self.kind,
            pad_id=self.ends[-1],
            device=self.device,
            generator=generator,
            shelf=self.shelf,
            swapped=self._swapped,
        )

    def replicate(self, batch: DialogueBatch, group_size: int) -> DialogueBatch:
        """Return the batch with row numbers as [P, G]; texts stay per prompt."""
        return replace(batch, rows=replicate(batch.rows, group_size))

    def encode(self, policy: LanguageModel, batch: DialogueBatch) -> Encoded:
        """Read the prompts, once for all of their replies; a retriever chooses their stories first."""
        if policy.retriever is not None:
            stories = choose_stories(policy.retriever, batch, by_answers=self.reads_by_answers)
            return self.read(policy, batch, stories)
        encoded = self._encode(policy, batch.prompt)
        if self.rewards.environment is None:
            return encoded
        stages = self.stages(batch.questions, batch.answers, batch.cells)
        return replace(encoded, stages=PerPrompt(stages))

    def stages(
        self, questions: Iterable[str], answers: Iterable[Sequence[str]], cells: Iterable[str]
    ) -> list[Stage]:
        """Build where the conversations about each row begin; see ``stages_of``."""
        return stages_of(
            self.rewards.environment,
            self.tokenizer,
            self.prompt,
            questions=questions,
            answers=answers,
            cells=cells,
            pool=self.pool,
        )

    def read(self, policy: LanguageModel, batch: DialogueBatch, stories: Tensor) -> Encoded:
        """Read the prompts with the stories of these numbers, int64 [P, n]."""
        prompts = self.prompts_with(batch.questions, stories)
        return replace(self._encode(policy, prompts), stories=stories)

    def _encode(self, policy: LanguageModel, prompts: Tokens) -> Encoded:
        encoded = policy.encode(prompts.ids, prompts.is_token)
        return encoded if self.engine is None else replace(encoded, prompt=prompts)

    def prompts_with(self, questions: Sequence[str], stories: Tensor) -> Tokens:
        """Tokenise P questions with the stories of these numbers, int64 [P, n]: ids and is_token [P, n, S]."""
        assert self.shelf is not None
        told = [[self.shelf.texts[number] for number in row] for row in stories.tolist()]
        tokens = prompts_with(
            questions, told, tokenizer=self.tokenizer, kind=self.kind, prompt=self.prompt
        )
        return Tokens(tokens.ids.to(self.device), tokens.is_token.to(self.device))

    def detach(self, context: Encoded) -> Encoded:
        """Return the encoding cut off from the graph."""
        return detached(context)

    @torch.no_grad()
    def sample(
        self,
        policy: LanguageModel,
        context: Encoded,
        group_size: int,
        *,
        temperature: float,
        proposal: Proposal,
        generator: Generator,
    ) -> ReplyRollouts:
        """Draw G replies of each prompt; ``none`` gives G empty replies.

        Raises:
            ValueError: for another proposal, or if a prompt and a reply do not fit the language model; as ``draw_by_engine``.
        """
        if proposal == "none":
            return nothing_written(context.start, group_size)
        by_engine = proposal == "engine" and self.engine is not None
        if proposal != "policy" and not by_engine:
            raise ValueError(
                f"proposal must be policy or none for the dialogue task, got {proposal}; a language model draws its own"
            )
        params = self.replies.model_copy(update={"temperature": temperature})
        sample = draw_by_engine if by_engine else sample_replies
        drawn = sample(
            policy, context, group_size, params=params, ends=self.ends, generator=generator
        )
        if context.stories is None:
            return drawn
        stories = context.stories[:, None].expand(-1, group_size, -1)  # [P, G, n]
        return replace(drawn, stories=stories)

    @property
    def engine(self) -> str | None:
        """The engine that draws in training; None for the project's sampler."""
        kind = self.replies.generation.kind
        return None if kind == "own" else kind

    def texts(self, rollouts: Rollouts) -> PerPrompt:
        """Decode the replies: for each prompt a tuple of G texts; of a conversation a line for each reply."""
        if self.rewards.environment is not None:
            return self._conversations(rollouts, replies_of)
        return in_groups(rollouts, decode_rows(self.tokenizer, *rows_of(rollouts)))

    def shown(self, rollouts: Rollouts) -> PerPrompt:
        """Write the replies for people: as ``texts``, and of a conversation also what was told."""
        if self.rewards.environment is None:
            return self.texts(rollouts)
        return self._conversations(rollouts, shown)

    def _conversations(self, rollouts: Rollouts, write: Callable[..., str]) -> PerPrompt:
        pairs = zip(*(rows.tolist() for rows in rows_of(rollouts)), strict=True)
        return in_groups(rollouts, [write(*pair, self.tokenizer) for pair in pairs])

    def decode(
        self, policy: LanguageModel, context: Encoded, rollouts: Rollouts, batch: DialogueBatch
    ) -> Outcomes:
        """Decode the replies, and begin to measure their rewards, which ``reward`` waits for."""
        replies = self.texts(rollouts)
        if not rollouts.actions.shape[-1]:
            return Outcomes(replies, PerPrompt())
        pending = submit_rewards(
            self.rewards,
            self.pool,
            replies=replies,
            answers=batch.answers,
            questions=batch.questions,
            cells=batch.cells,
        )
        return Outcomes(
            replies, PerPrompt(RewardShare(pending, place) for place in range(len(replies)))
        )

    def reward(
        self, batch: DialogueBatch, rollouts: Rollouts, outcomes: Outcomes
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Wait for the rewards of the replies; NaN without samples, or if a component failed under the rule ``exclude``.

        Raises:
            RewardFailedError: if a component failed under the rule ``stop``, or a weighted component for every reply of the
                batch.
            RewardPoolError: if a process cannot be started.
        """
        parts = gather_rewards(self.rewards, outcomes, shape=rollouts.actions.shape[:2])
        return {name: part.to(self.device) for name, part in parts.items()}, self.rewards.weights

    def turn_rewards(self, rollouts: Rollouts, batch: DialogueBatch) -> tuple[Tensor, Tensor]:
        """Play the conversations again: what had been paid before each reply, weighed, and the reply of each token."""
        environment = self.rewards.environment
        assert environment is not None
        stages = self.stages(batch.questions, batch.answers, batch.cells)
        before = paid_before(stages, self.texts(rollouts), environment.turns) * environment.weight
        return before.to(self.device), turns_of(rollouts.actions, rollouts.is_valid, self.ends)

    def score(
        self, policy: LanguageModel, context: Encoded, rollouts: Rollouts, *, temperature: float
    ) -> Scores:
        """Compute log-probabilities of these tokens among the kept choices, and the mean entropy of a token."""
        limit = self.replies.tokens_per_batch
        return score_replies(
            policy,
            context,
            rollouts if isinstance(rollouts, ReplyRollouts) else ReplyRollouts(**vars(rollouts)),
            temperature=temperature,
            tokens_per_batch=limit,
        )

    @torch.no_grad()
    def score_reference(
        self,
        reference: LanguageModel,
        batch: DialogueBatch,
        rollouts: Rollouts,
        *,
        temperature: float,
    ) -> ReferenceScores:
        """Score the replies under the reference, which reads the stories that the policy has read."""
        stories = getattr(rollouts, "stories", None)
        if stories is None:
            return super().score_reference(reference, batch, rollouts, temperature=temperature)
        context = self.read(reference, batch, stories[:, 0])
        scores = self.score(reference, context, rollouts, temperature=temperature)
        return ReferenceScores(logprobs=scores.logprobs)

    def supervised_counts(self, batch: DialogueBatch) -> Tensor:
        """Count the reference tokens, or the replies, and the prompts of a retriever that learns: float64 [1] or [2]."""
        counts = self._count_references(batch)
        if not self._teaches_retriever:
            return counts
        return torch.cat((counts, counts.new_tensor([len(batch.prompt.ids)])))

    @property
    def supervised_reads_rewards(self) -> bool:
        """Check whether a retriever learns: its term of the loss reads the rewards of its candidates."""
        return self._teaches_retriever

    @property
    def _teaches_retriever(self) -> bool:
        return self.prompt.retriever is not None and not self.reads_by_answers

    @property
    def _swapped(self) -> float:
        retriever = self.prompt.retriever
        return 0.0 if retriever is None or not self.reads_by_answers else retriever.swapped

    def _count_references(self, batch: DialogueBatch) -> Tensor:
        if batch.reference is None:
            return torch.zeros(1, dtype=torch.float64, device=self.device)
        count = (
            batch.reference.is_token.sum()
            if self.supervised.mean == "per_token"
            else len(batch.reference.ids)
        )
        return torch.as_tensor([count], dtype=torch.float64, device=self.device)

    def supervised_loss(
        self,
        policy: LanguageModel,
        context: Encoded,
        batch: DialogueBatch,
        outcomes: Outcomes,
        shares: Tensor | None = None,
    ) -> Tensor:
        """Compute the cross-entropy of the batch's reference replies, at temperature 1 over all tokens.

        A retriever that learns adds its distance from the rewards of its candidates (``retriever_loss``).

        Raises:
            ValueError: if the examples have no answers.
        """
        if batch.reference is None:
            raise ValueError(
                f"the supervised loss must have an answer of every example, got none of row {int(batch.rows.flatten()[0])}; name "
                "the column in dialogue.data.source.answers, or take losses.supervised from the arm, and dialogue.warm_start away"
            )
        logprobs = reference_logprobs(policy, context, batch.reference)
        loss = reference_loss(logprobs, batch.reference.is_token, mean=self.supervised.mean)
        loss = loss if shares is None else loss * shares[0].to(loss.dtype)
        if policy.retriever is None or not self._teaches_retriever:
            return loss
        found = self._retriever_loss(policy, policy.retriever, batch)
        found = found.to(loss.dtype)
        return loss + (found if shares is None else found * shares[1].to(loss.dtype))

    def _retriever_loss(
        self, policy: LanguageModel, retriever: Retriever, batch: DialogueBatch
    ) -> Tensor:
        """Compare the retriever with the rewards of the replies that single stories lead to."""
        draws = None if batch.draws is None else batch.draws[:, 1]
        stories = retriever.candidates(batch.asked, draws)  # [P, m]
        questions = [text for text in batch.questions for _ in range(stories.shape[1])]
        rewards = reward_stories(
            policy,
            batch,
            self.prompts_with(questions, stories.view(-1, 1)),
            rewards=self.rewards,
            pool=self.pool,
            tokenizer=self.tokenizer,
            max_tokens=self.replies.max_tokens,
        )
        return retriever_loss(
            retriever.scores(batch.asked, stories),
            rewards.to(self.device),
            temperature=retriever.params.temperature,
        )

    # How it is judged and shown: functions of ``evaluation``, whose first argument is the task.
    evaluate, validate, audit = evaluate, validate, audit.audit
    tabulate, showcase, training_frame = tabulate, showcase, training_frame

    @property
    def audit_plan(self) -> AuditPlan:
        """Plan the rules of a reward audit, and the scores beside the reward."""
        return audit.audit_plan(self.rewards)

    def describe(self, policy: LanguageModel) -> dict[str, Any]:
        """Describe the parameters and the architecture of the language model, from which the policy can be built again."""
        sections = {
            "language_model": self.language_model,
            "prompt": self.prompt,
            "replies": self.replies,
        }
        dumped = {name: section.model_dump(mode="json") for name, section in sections.items()}
        # An exported model writes by the project's sampler.
        dumped["replies"].pop("generation", None)
        if self.rewards.environment is not None:
            environment = self.rewards.environment.model_dump(exclude={"weight"})
            limit = {"timeout_seconds": self.pool.timeout_seconds}
            dumped["environment"] = environment | limit
        if policy.retriever is not None:
            dumped["stories_read"] = {"top_n": policy.retriever.shelf.params.top_n}
        if self.prompt_column != "question":
            dumped["columns"] = {"question": self.prompt_column}
        return {"task": self.name, **dumped, "language_model_config": policy.model.config.to_dict()}

    def model_folders(self, policy: LanguageModel) -> Mapping[str, Callable[[Path], None]]:
        """Map folders to what writes them: the whole model, low-rank updates alone for peft, and the stories of a retriever."""
        folders: dict[str, Callable[[Path], None]] = {
            FOLDER: partial(write_huggingface, policy, self.tokenizer)
        }
        if has_updates(policy):
            folders[ADAPTER] = partial(write_adapter, policy)
        if policy.retriever is not None:
            folders[SHELF_FOLDER] = policy.retriever.shelf.write
        return folders

    def fingerprint(self, data: DialogueData, *, draws: bool = True) -> dict[str, Any]:
        """Describe model, objective, initial weights and data as JSON-able values: what a checkpoint and its run must agree on.

        Left out: where a folder lies, and what only says how it is executed. Where no replies are drawn, neither their rewards
        nor their distribution decide anything: of ``replies`` only the length stays, to which reference replies are cut. A
        retriever that learns is taught by rewards in any arm.
        """
        prompt = decisive(self.prompt)
        if self.prompt.retriever is None:
            del prompt["retriever"]  # as it was before there was one
        shared = {
            "language_model": describe_language_model(self.language_model),
            "prompt": prompt,
            "supervised_loss": decisive(self.supervised),
            "examples": data.examples.digest,
            "start": None if self.start is None else digest_of_tensors(self.start.tensors),
        }
        environment = self.rewards.environment
        if (
            environment is not None
        ):  # it also decides what stands between the replies that are imitated
            shared["environment"] = digest_of(environment.environment)
        if not draws and not self._teaches_retriever:
            return shared | {"replies": {"max_tokens": self.replies.max_tokens}}
        if self.engine is not None:
            shared["generation"] = decisive(self.replies.generation)
        return shared | {
            "replies": decisive(self.replies, without=["generation"]),
            "reward": decisive(self.rewards),
            "reward_pool": {"failure": self.pool.failure},
            "reward_functions": {
                name: measure.digest for name, measure in self.rewards.measures.items()
            },
        }
