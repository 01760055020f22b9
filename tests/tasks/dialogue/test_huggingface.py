"""The Hugging Face folder that an arm writes: transformers loads it, whole, and says the same of every token."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention
import tiny_talk as tiny
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer

from grpo_pipeline.core.storage.checkpoint import snapshot
from grpo_pipeline.core.storage.weights import save_weights
from grpo_pipeline.pipelines.training.nodes import build_state, export_model
from grpo_pipeline.tasks.dialogue.exported import plain_model
from grpo_pipeline.tasks.dialogue.language_model.build import build_reader
from grpo_pipeline.tasks.dialogue.language_model.params import FolderReaderParams

POSITIONS = {"t5": None, "gpt2": 400, "llama": 400}
LORA = {"rank": 2, "alpha": 3.0}


def exported(folder: Path, architecture: str, lora: dict[str, float] | None) -> tuple[Any, Any]:
    """Export a policy with weights far from its start; returns the task and the policy."""
    reader = {"architecture": architecture, "max_positions": POSITIONS[architecture], "lora": lora}
    task = tiny.make_task(reader=reader)
    rates = dict.fromkeys(task.parameter_groups(task.build_policy(0)), 0.1)
    training = tiny.training_params(optimizer={"learning_rates": rates})
    state = build_state(tiny.algorithm_params(), training, 0, task, tiny.make_data(task))
    tiny_attention.shake(state.policy, seed=1)
    checkpoint = snapshot(state, progress={"position": 0, "total_steps": 1})
    save_weights(folder, export_model(task, checkpoint))
    return task, state.policy


def plain_logprobs(model: Any, prompt: torch.Tensor, reply: torch.Tensor) -> torch.Tensor:
    """Return the log-probabilities [T] of a reply's tokens as transformers computes them, one row, no padding."""
    if model.config.is_encoder_decoder:
        start = torch.tensor([[model.config.decoder_start_token_id]])
        logits = model(input_ids=prompt[None], decoder_input_ids=torch.cat((start, reply[None, :-1]), dim=1)).logits[0]
    else:
        logits = model(input_ids=torch.cat((prompt, reply[:-1]))[None]).logits[0, len(prompt) - 1 :]
    return logits.log_softmax(-1).gather(-1, reply[:, None])[:, 0]


@pytest.mark.parametrize("lora", [None, LORA], ids=["whole", "lora"])
@pytest.mark.parametrize("architecture", ["t5", "gpt2", "llama"])
@torch.no_grad()
def test_transformers_loads_every_key_and_says_the_same(tmp_path: Path, architecture: str, lora: Any) -> None:
    task, policy = exported(tmp_path / "model", architecture, lora)
    folder = tmp_path / "model" / "huggingface"
    loader = AutoModelForSeq2SeqLM if architecture == "t5" else AutoModelForCausalLM
    model, told = loader.from_pretrained(folder, output_loading_info=True, local_files_only=True)
    assert [key for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in told[kind]] == []

    batch = task.make_batch(tiny.make_data(task), np.arange(4))
    generator = torch.Generator().manual_seed(3)
    # Of several texts that are fused in the decoder the first one: transformers knows no fusion.
    ids, is_token = batch.prompt.ids[:, :1], batch.prompt.is_token[:, :1]
    context = policy.encode(ids, is_token)
    rollouts = task.sample(policy, context, 2, temperature=1.0, proposal="policy", generator=generator)
    ours = task.score(policy, context, rollouts, temperature=1.0).logprobs
    compared = 0
    for p, g in np.ndindex(4, 2):
        drawn = rollouts.is_valid[p, g]
        theirs = plain_logprobs(model.eval(), ids[p, 0, is_token[p, 0]], rollouts.actions[p, g, drawn])
        torch.testing.assert_close(ours[p, g, drawn], theirs, rtol=0, atol=1e-5)
        compared += int(drawn.sum())
    assert compared > 10


@pytest.mark.parametrize("architecture", ["t5", "gpt2", "llama"])
def test_its_tokenizer_has_the_same_ids(tmp_path: Path, architecture: str) -> None:
    task, _ = exported(tmp_path / "model", architecture, None)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "model" / "huggingface", local_files_only=True)
    text = "persona: i bake bread – ¡olé! context: hi\n"
    assert theirs.encode(text, add_special_tokens=False) == task.tokenizer.encode(text)
    assert (theirs.eos_token_id, theirs.pad_token_id, len(theirs)) == (task.tokenizer.eos_id, task.tokenizer.pad_id, 259)


@pytest.mark.parametrize("tokenizer", ["bytes", "folder"])
@torch.no_grad()
def test_training_may_begin_with_it(tmp_path: Path, tokenizer: str) -> None:
    _, policy = exported(tmp_path / "model", "t5", LORA)
    path = str(tmp_path / "model" / "huggingface")
    params = FolderReaderParams(source="folder", path=path, tokenizer=tokenizer, lora=None)
    begun = build_reader(params, seed=0)[0].model.state_dict()
    for name, expected in plain_model(policy).state_dict().items():
        torch.testing.assert_close(begun[name], expected, rtol=0, atol=0)


def test_merging_leaves_the_policy_as_it_is(tmp_path: Path) -> None:
    _, policy = exported(tmp_path / "model", "gpt2", LORA)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    merged = plain_model(policy)
    assert not [name for name in merged.state_dict() if "lora" in name or "base_layer" in name]
    assert all(torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items())


def test_only_the_folder_that_is_one_looks_like_one(tmp_path: Path) -> None:
    exported(tmp_path / "model", "t5", LORA)
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["huggingface", "model.json", "model.safetensors"]
    with pytest.raises((OSError, ValueError)):
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model", local_files_only=True)
