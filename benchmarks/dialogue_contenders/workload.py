"""The workload that all contenders are given: prompts, start weights, a reward, and the sizes of a step.

The weights are such that the end of a reply is never drawn, so that every contender writes exactly ``new_tokens`` tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import torch

from grpo_pipeline.tasks.dialogue.data.generated.generate import generate_rows, generate_stories
from grpo_pipeline.tasks.dialogue.data.generated.params import PersonaParams
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel
from grpo_pipeline.tasks.dialogue.language_model.build import build_language_model
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import OFFSET, ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.params import CausalParams, LanguageModelParams
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import prompt_texts, story_text
from grpo_pipeline.tasks.dialogue.scores.bleu import bleu
from grpo_pipeline.tasks.dialogue.scores.f1 import f1
from grpo_pipeline.tasks.dialogue.scores.rouge import rouge_l

PERSONAS = {
    "personas": 40,
    "dialogues_per_persona": 1,
    "sentences": 4,
    "extra_stories": 0,
    "exchanges": 1,
    "needs": {"persona": 0.5, "story": 0.3, "none": 0.2},
}
# The logit of the end, which no draw reaches, and the unit of the last layer norm that makes it.
END_LOGIT, CONSTANT = -200.0, 10.0
LEARNING_RATE, BETAS, EPS, WEIGHT_DECAY = 1e-4, (0.9, 0.999), 1e-8, 0.01
CLIP, ADVANTAGE_EPS = 0.2, 1e-4
# Of the components of the reward.
WEIGHTS = {"f1": 1.0, "rouge_l": 1.0, "bleu": 1.0, "letters": 1.0}


@dataclass(frozen=True)
class Workload:
    """The sizes of a step.

    Attributes:
        prompts: P, different ones in a step.
        prompt_tokens: S, of every prompt; none is padded.
        group_size: G.
        new_tokens: L, of every reply.
        width: of the model.
        layers: of the model.
        heads: of the model.
        beta: weight of the KL to the start, k3.
        max_grad_norm: all gradients together are cut to it.
        seed: of weights, prompts and draws.
        rank: of low-rank updates of ours, which leave the other weights as they are; 0 trains all.
        weights: number format of ours where there are such updates.
        recompute_layers: whether layers of ours compute themselves again in the backward pass.
    """

    prompts: int = 4
    prompt_tokens: int = 256
    group_size: int = 8
    new_tokens: int = 32
    width: int = 128
    layers: int = 4
    heads: int = 4
    beta: float = 0.05
    max_grad_norm: float = 1.0
    seed: int = 0
    rank: int = 0
    weights: Literal["float32", "bfloat16"] = "float32"
    recompute_layers: bool = False

    @property
    def samples(self) -> int:
        """N = P * G, replies of a step."""
        return self.prompts * self.group_size

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """P texts of exactly S bytes each: the generated stories and questions, the last S bytes of them."""
        return tuple(text for text, _ in self._examples)

    @cached_property
    def answers(self) -> tuple[list[str], ...]:
        """The reference answers of each prompt."""
        return tuple(answers for _, answers in self._examples)

    @cached_property
    def ids(self) -> torch.Tensor:
        """The prompts as tokens, int64 [P, S]."""
        return torch.tensor([ByteTokenizer().encode(text) for text in self.texts])

    @cached_property
    def _examples(self) -> list[tuple[str, list[str]]]:
        params = PersonaParams.model_validate(PERSONAS | {"seed": self.seed})
        rows, stories = generate_rows(params), generate_stories(params)
        found = []
        for number, row in enumerate(rows[: self.prompts]):
            told = [
                story_text(
                    *(str(stories[(number + k) % len(stories)][part]) for part in ("title", "text"))
                )
                for k in (0, 1)
            ]
            # Repeated until it is long enough: what a prompt says makes no difference to what it costs.
            text = " ".join([*told * (1 + self.prompt_tokens // 100)])
            whole = prompt_texts(str(row["question"]), [text], kind="causal")[0]
            found.append((whole[-self.prompt_tokens :], [str(answer) for answer in row["answers"]]))
        return found


def write_start(workload: Workload, folder: Path) -> Path:
    """Write the start weights as a folder that transformers reads; returns it."""
    language_model, _ = build_language_model(reader_params(workload), seed=workload.seed)
    forbid_end(language_model)
    language_model.model.save_pretrained(folder)
    return folder


def reader_params(workload: Workload) -> LanguageModelParams:
    """Return a GPT-2 of these sizes that reads bytes."""
    network = CausalParams(
        kind="gpt2",
        width=workload.width,
        layers=workload.layers,
        heads=workload.heads,
        max_positions=workload.prompt_tokens + workload.new_tokens,
    )
    return LanguageModelParams(network=network)


@torch.no_grad()
def forbid_end(language_model: LanguageModel) -> None:
    """Make the weights of a GPT-2 such that the end, and what else is no byte, is never drawn, whatever was read.

    The last layer norm gets a constant in one unit, and these tokens a large negative weight on it: the same change for all
    contenders, and no mask that one of them would have to apply.
    """
    language_model.model.transformer.ln_f.bias[0] = CONSTANT
    language_model.model.transformer.wte.weight[:, 0] = 0.0
    language_model.model.transformer.wte.weight[:OFFSET, 0] = END_LOGIT / CONSTANT


def reward(replies: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Return the reward of each reply: F1 + ROUGE-L + BLEU, and the share of its letters, which a fresh model has, too."""
    parts = {
        "f1": f1(replies, answers),
        "rouge_l": rouge_l(replies, answers),
        "bleu": bleu(replies, answers),
        "letters": letters(replies, answers),
    }
    return [
        sum(WEIGHTS[name] * float(values[n]) for name, values in parts.items())
        for n in range(len(replies))
    ]


def letters(replies: Sequence[str], answers: Sequence[Sequence[str]]) -> list[float]:
    """Return the share of letters in each reply."""
    return [sum(map(str.isalpha, reply)) / max(1, len(reply)) for reply in replies]
