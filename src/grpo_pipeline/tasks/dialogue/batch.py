"""Hold a batch of prompts, and the outcomes of the sampled replies."""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Generator, Tensor

from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.tasks.dialogue.dialogue_data import DialogueData
from grpo_pipeline.tasks.dialogue.language_model.prompt_text import ModelKind
from grpo_pipeline.tasks.dialogue.language_model.tokens import Side, Tokens
from grpo_pipeline.tasks.dialogue.retriever.shelf import StoryShelf


@dataclass(frozen=True)
class DialogueBatch:
    """P prompts.

    Attributes:
        rows: row numbers in the data, int64 [P] or [P, G].
        prompt: ids and is_token [P, n, S], as the language model takes them.
        reference: ids and is_token [P, T], a reference reply of each prompt, padded on the right, with its end; None without.
            Of a conversation ``is_token`` marks the replies, and not what stands between them.
        answers: for each prompt all reference replies, as texts.
        questions: for each prompt the text that the model reads, without its stories.
        cells: for each prompt the other columns of its row, a JSON object.
        asked: for each prompt what a retriever looks for (``retriever.shelf.Asked``); empty without one.
        draws: int64 [P, 2], a number of the whole batch and one of each prompt; None outside training, and without a retriever.
    """

    rows: Tensor
    prompt: Tokens
    reference: Tokens | None
    answers: PerPrompt
    questions: PerPrompt
    cells: PerPrompt
    asked: PerPrompt = field(default_factory=PerPrompt)
    draws: Tensor | None = None


@dataclass(frozen=True)
class Outcomes:
    """Outcomes of the samples of P prompts.

    Attributes:
        replies: of each prompt its G texts.
        rewards: of each prompt a ``RewardShare``; empty where nothing was written.
    """

    replies: PerPrompt
    rewards: PerPrompt


def make_batch(
    data: DialogueData,
    rows: np.ndarray,
    *,
    kind: ModelKind,
    pad_id: int,
    device: torch.device,
    generator: Generator | None = None,
    shelf: StoryShelf | None = None,
    swapped: float = 0.0,
) -> DialogueBatch:
    """Build the batch of these rows.

    Args:
        data: tokens and texts.
        rows: int64 [P].
        kind: kind of the language model; prompts of a causal model are padded on the left.
        pad_id: id of padding.
        device: device of the tensors.
        generator: draws the reference reply among the answers, for training; None takes the first answer.
        shelf: of a retriever; then the batch says what is looked for, and how chance decides.
        swapped: share of the prompts of a training batch that get the answers of another one.
    """
    draws = (
        torch.zeros(len(rows)) if generator is None else torch.rand(len(rows), generator=generator)
    )
    padding: Side = "left" if kind == "causal" else "right"
    prompt = data.prompts.padded(data.prompts.texts_of(rows), pad_id=pad_id, padding=padding)
    answered = rows
    if swapped and generator is not None:
        moved = np.flatnonzero(torch.rand(len(rows), generator=generator).numpy() < swapped)
        answered = rows.copy()
        answered[moved] = rows[np.roll(moved, 1)]
    reference = None
    if data.examples.has_answers:
        texts = data.references.draw_texts(answered, draws.numpy())
        reference = data.references.padded(texts, pad_id=pad_id, padding="right")
        if data.own is not None:
            own = data.own.padded(texts, pad_id=0, padding="right").ids.bool()
            reference = Tokens(reference.ids, own)
    table = data.examples.table.iloc[rows]
    chance = None
    if shelf is not None and generator is not None:
        drawn = torch.randint(2**62, (len(rows) + 1,), generator=generator)
        chance = torch.stack((drawn[:1].expand(len(rows)), drawn[1:]), dim=1).to(device)  # [P, 2]
    return DialogueBatch(
        rows=torch.as_tensor(rows, dtype=torch.int64).to(device),
        prompt=_to(prompt, device),
        reference=None if reference is None else _to(reference, device),
        answers=PerPrompt(tuple(texts) for texts in data.examples.table["answers"].iloc[answered]),
        questions=PerPrompt(table["question"]),
        cells=PerPrompt(table["columns"]),
        asked=PerPrompt() if shelf is None else PerPrompt(shelf.asked(table)),
        draws=chance,
    )


def _to(tokens: Tokens, device: torch.device) -> Tokens:
    return Tokens(tokens.ids.to(device), tokens.is_token.to(device))
