"""TRL's ``GRPOTrainer`` on the same work; its own loop runs, and says when a step is over.

Dropout, mixed precision and gradient checkpointing are off, as everywhere here (the last two are on by default there);
``num_iterations`` is 1, where TRL needs no second pass for the old log-probabilities either.
"""

import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, TrainerCallback

from dialogue_contenders.workload import (
    BETAS,
    CLIP,
    EPS,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Workload,
    reward,
)
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import EOS, OFFSET, PAD, UNKNOWN

INSTALL = 'pip install -c constraints.txt -e ".[oracles]"'


def is_installed() -> bool:
    """Say whether TRL can be imported."""
    return find_spec("trl") is not None


class TrlRun:
    """A trainer that is ready to take some steps.

    Args:
        workload: the sizes.
        folder: of the start weights, where TRL looks for the reference, too.
        steps: how many.
    """

    def __init__(self, workload: Workload, folder: str, *, steps: int) -> None:
        self._tokens = 0
        self.trainer = build_trainer(workload, folder, steps=steps, measure=self._measure)

    def train(self, after_step: Callable[[int], None]) -> None:
        """Take the steps; ``after_step`` gets the number of tokens written after each."""
        self.trainer.add_callback(_AfterStep(lambda: after_step(self._tokens)))
        self.trainer.train()

    def _measure(
        self,
        completions: Sequence[str],
        completion_ids: Sequence[Sequence[int]],
        answers: Sequence[Sequence[str]],
        **_: Any,
    ) -> list[float]:
        self._tokens = sum(map(len, completion_ids))
        return reward(completions, answers)


def build_trainer(
    workload: Workload, folder: str, *, steps: int, measure: Callable[..., list[float]]
) -> Any:
    """Return a ``GRPOTrainer`` whose batch is all prompts, G times each."""
    from datasets import Dataset
    from trl import GRPOTrainer

    model: Any = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPS,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )
    rows = {"prompt": list(workload.texts), "answers": [list(texts) for texts in workload.answers]}
    return GRPOTrainer(
        model=model,
        reward_funcs=measure,
        args=_config(workload, steps),
        train_dataset=Dataset.from_dict(rows),
        processing_class=byte_tokenizer(),
        optimizers=(optimizer, None),
    )


def _config(workload: Workload, steps: int) -> Any:
    from trl import GRPOConfig

    return GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=workload.samples,
        gradient_accumulation_steps=1,
        num_generations=workload.group_size,
        max_completion_length=workload.new_tokens,
        max_steps=steps,
        num_iterations=1,
        beta=workload.beta,
        use_bias_correction_kl=False,  # the KL is k3, as in the other contenders
        epsilon=CLIP,
        loss_type="grpo",
        scale_rewards="group",
        temperature=1.0,
        max_grad_norm=workload.max_grad_norm,
        lr_scheduler_type="constant",
        learning_rate=LEARNING_RATE,
        shuffle_dataset=False,
        bf16=False,
        gradient_checkpointing=False,
        use_cpu=True,
        dataloader_pin_memory=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        seed=workload.seed,
    )


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Return our byte-level tokenizer in the form that transformers knows: id = byte + 3."""
    special = {"<pad>": PAD, "</s>": EOS, "<unk>": UNKNOWN}
    vocabulary = special | {
        character: byte + OFFSET for byte, character in enumerate(_characters())
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **names)


def _characters() -> list[str]:
    """Return the characters that stand for the bytes in byte-level vocabularies: themselves where they can be printed."""
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    silent = [byte for byte in range(256) if chr(byte) not in alphabet]
    return [
        chr(byte) if chr(byte) in alphabet else chr(256 + silent.index(byte)) for byte in range(256)
    ]


class _AfterStep(TrainerCallback):
    def __init__(self, after_step: Callable[[], None]) -> None:
        self._after_step = after_step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Hand over."""
        self._after_step()
