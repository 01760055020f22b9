"""Read prompts with stories that are chosen while training, and reward the replies that single stories lead to."""

from collections.abc import Sequence

import torch
from torch import Tensor

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.tasks.dialogue.batch import DialogueBatch
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import (
    ModelKind,
    frame_of,
    prompt_ids,
)
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies
from grpo_pipeline.tasks.dialogue.language_model.tokens import (
    Side,
    Tokenizer,
    Tokens,
    decode_rows,
    pad_rows,
)
from grpo_pipeline.tasks.dialogue.params import PromptParams
from grpo_pipeline.tasks.dialogue.retriever.towers import Retriever
from grpo_pipeline.tasks.dialogue.rewards.params import DialogueReward
from grpo_pipeline.tasks.dialogue.rewards.reward import submit_rewards


def choose_stories(retriever: Retriever, batch: DialogueBatch, *, by_answers: bool) -> Tensor:
    """Choose the stories that each prompt reads, int64 [P, n].

    In a training batch the retriever counts a step first. Before it learns, the language model learns to read the stories that
    the words of the right answers find (``by_answers``); no other batch may know them.
    """
    if batch.draws is None:
        return retriever.choose(batch.asked)
    retriever.begin_step(int(batch.draws[0, 0]))
    if not by_answers or not all(batch.answers):
        return retriever.choose(batch.asked)
    told = zip(batch.asked, batch.answers, strict=True)
    return retriever.choose([one._replace(query=" ".join(answers)) for one, answers in told])


def prompts_with(
    questions: Sequence[str],
    stories: Sequence[Sequence[str]],
    *,
    tokenizer: Tokenizer,
    kind: ModelKind,
    prompt: PromptParams,
) -> Tokens:
    """Tokenise P questions with n stories each, ids and is_token [P, n, S]; a text that is too long loses its beginning.

    Raises:
        ValueError: if a text is too long and is to be refused.
    """
    begin, end = frame_of(tokenizer, prompt, kind=kind)
    room = prompt.max_tokens - len(begin) - len(end)
    read = [
        prompt_ids(tokenizer, question, texts, kind=kind, prompt=prompt)
        for question, texts in zip(questions, stories, strict=True)
    ]
    longest = max(len(text) for texts in read for text in texts)
    if prompt.too_long == "refuse" and longest > room:
        raise ValueError(
            f"a prompt must have at most {room} tokens in a text, got {longest}; raise dialogue.prompt.max_tokens, or set "
            "dialogue.prompt.too_long: keep_end"
        )
    flat = [begin + text[-room:] + end for texts in read for text in texts]
    side: Side = "left" if kind == "causal" else "right"
    padded = pad_rows(flat, pad_id=tokenizer.pad_id, padding=side)
    shape = (len(read), len(read[0]), -1)
    return Tokens(padded.ids.view(shape), padded.is_token.view(shape))


@torch.no_grad()
def reward_stories(
    policy: LanguageModel,
    batch: DialogueBatch,
    prompts: Tokens,
    *,
    rewards: DialogueReward,
    pool: RewardPool,
    tokenizer: Tokenizer,
    max_tokens: int,
) -> Tensor:
    """Compute the reward of the likeliest reply to each prompt with each story alone, float64 [P, m] (no grad).

    Args:
        policy: writes the replies.
        batch: P prompts.
        prompts: ids and is_token [P * m, 1, S], prompt p with its candidate i alone in row p * m + i.
        rewards: terms and weights.
        pool: measures them.
        tokenizer: of the policy.
        max_tokens: longest reply.
    """
    count = len(prompts.ids) // len(batch.answers)
    encoded = policy.encode(prompts.ids, prompts.is_token)
    ends = (*tokenizer.end_ids, tokenizer.pad_id)
    written = greedy_replies(policy, encoded, max_tokens=max_tokens, ends=ends)
    texts = decode_rows(tokenizer, written.actions[:, 0], written.is_valid[:, 0])  # P * m
    groups = [tuple(texts[p * count : (p + 1) * count]) for p in range(len(batch.answers))]
    measured = submit_rewards(
        rewards,
        pool,
        replies=PerPrompt(groups),
        answers=batch.answers,
        questions=batch.questions,
        cells=batch.cells,
    ).result()
    return combine_rewards(measured.components, measured.weights).total


def retriever_loss(scores: Tensor, rewards: Tensor, *, temperature: float) -> Tensor:
    """Compute how far the retriever is from the rewards of its candidates, a scalar, in nats.

        loss = mean over p of KL(softmax(rewards[p] / temperature) || softmax(scores[p]))

    A candidate without a reward is left out. A prompt whose candidates all earn the same has loss 0: no story is better.

    Args:
        scores: [P, m], with gradient.
        rewards: [P, m], detached; NaN where a reply was not scored.
        temperature: above 0; the lower, the more the best one counts.
    """
    there = ~rewards.isnan()
    highest = rewards.masked_fill(~there, -torch.inf).amax(dim=1)  # [P]
    differ = highest > rewards.masked_fill(~there, torch.inf).amin(dim=1)
    rewards, scores, there = rewards[differ], scores[differ].to(rewards), there[differ]
    target = (rewards / temperature).masked_fill(~there, -torch.inf).log_softmax(dim=1)  # [P', m]
    found = scores.masked_fill(~there, -torch.inf).log_softmax(dim=1)
    # What is left out is -inf in both, and counts as nothing.
    apart = target.exp() * (target - found).masked_fill(~there, 0.0)
    return apart.sum() / len(differ)
