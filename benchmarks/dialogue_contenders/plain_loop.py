"""The plain loop: every prompt G times, transformers' cache while writing, and a model call for each set of log-probabilities.

What public code without a library does: read prompt and reply of every sample again to get the old log-probabilities, the
reference's, and those of the update.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from dialogue_contenders.workload import (
    ADVANTAGE_EPS,
    BETAS,
    CLIP,
    EPS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Workload,
    reward,
)
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer


class PlainLoop:
    """Holds model, reference and optimiser; ``step`` takes one step.

    Args:
        workload: the sizes.
        folder: of the start weights.
    """

    def __init__(self, workload: Workload, folder: str) -> None:
        self.workload = workload
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
        self.reference = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=LEARNING_RATE,
            betas=BETAS,
            eps=EPS,
            weight_decay=WEIGHT_DECAY,
            fused=True,
        )
        self.generator = torch.Generator().manual_seed(workload.seed)

    def step(self) -> int:
        """Take one step; returns the number of tokens written."""
        work = self.workload
        prompts = work.ids.repeat_interleave(work.group_size, dim=0)
        with torch.no_grad():
            replies = self.write(prompts)
            old = self.logprobs(self.model, prompts, replies)
            reference = self.logprobs(self.reference, prompts, replies)
        advantages = self.advantages(replies)
        self.optimizer.zero_grad()
        self.loss(prompts, replies, old, reference, advantages).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), work.max_grad_norm)
        self.optimizer.step()
        return replies.numel()

    def write(self, prompts: Tensor) -> Tensor:
        """Draw a reply [N, L] to each prompt [N, S]."""
        cache, tokens, written = DynamicCache(), prompts, []
        for _ in range(self.workload.new_tokens):
            logits = self.model(
                input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1
            ).logits[:, -1]
            tokens = torch.multinomial(logits.softmax(dim=-1), 1, generator=self.generator)
            written.append(tokens)
        return torch.cat(written, dim=1)

    def logprobs(self, model: Any, prompts: Tensor, replies: Tensor) -> Tensor:
        """Return the log-probability of each token, [N, L]: prompt and reply are read."""
        width = replies.shape[1]
        logits = model(
            input_ids=torch.cat((prompts, replies), dim=1),
            use_cache=False,
            logits_to_keep=width + 1,
        ).logits
        return logits[:, :-1].log_softmax(dim=-1).gather(-1, replies[..., None])[..., 0]

    def advantages(self, replies: Tensor) -> Tensor:
        """Return how much better each reply is than its group, [N]."""
        work, tokenizer = self.workload, ByteTokenizer()
        answers: list[Sequence[str]] = [
            texts for texts in work.answers for _ in range(work.group_size)
        ]
        rewards = torch.tensor(
            reward([tokenizer.decode(row) for row in replies.tolist()], answers)
        ).view(work.prompts, -1)
        centred = rewards - rewards.mean(dim=1, keepdim=True)
        return (centred / (rewards.std(dim=1, keepdim=True) + ADVANTAGE_EPS)).flatten()

    def loss(
        self, prompts: Tensor, replies: Tensor, old: Tensor, reference: Tensor, advantages: Tensor
    ) -> Tensor:
        """Return the clipped surrogate and the KL (k3), a mean over replies of means over tokens."""
        logprobs = self.logprobs(self.model, prompts, replies)
        ratio = (logprobs - old).exp()
        surrogate = torch.minimum(
            ratio * advantages[:, None], ratio.clamp(1 - CLIP, 1 + CLIP) * advantages[:, None]
        )
        difference = reference - logprobs
        kl = difference.exp() - difference - 1
        return (self.workload.beta * kl - surrogate).mean(dim=1).mean()
