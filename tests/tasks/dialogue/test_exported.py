"""An exported model is complete by itself: it writes the same replies without the folder that it was trained from."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention
import tiny_talk as tiny
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_pipeline.core.storage.checkpoint import snapshot
from grpo_pipeline.core.storage.weights import load_weights, save_weights
from grpo_pipeline.pipelines.training.nodes import build_state, export_model
from grpo_pipeline.tasks.dialogue.exported import read_exported, write_reply
from grpo_pipeline.tasks.dialogue.language_model.base import story_text
from grpo_pipeline.tasks.dialogue.language_model.sampling import greedy_replies

ROWS = np.arange(6)
POSITIONS = {"t5": None, "gpt2": 400, "llama": 400}


def model_folder(path: Path, architecture: str) -> dict[str, Any]:
    """Write a model and a tokenizer of its 259 words; returns the section that reads them."""
    reader = {"architecture": architecture, "max_positions": POSITIONS[architecture]}
    model = tiny.make_task(reader=reader).build_policy(3).model
    tiny_attention.shake(model, seed=2)
    model.save_pretrained(path)
    known = ["<pad>", "<eos>", "<unk>", "cat", "dog", "like", "i", "story", "what", "hello"]
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate([*known, *map(str, range(10, 259))])}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"unk_token": "<unk>", "eos_token": "<eos>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(path)
    return {"source": "folder", "path": str(path), "tokenizer": "folder"}


def export(task: Any, folder: Path) -> Any:
    """Export the task's policy with other weights than it began with; returns the policy."""
    rates = {"embeddings": 0.1, "encoder": 0.1, "decoder": 0.1}
    training = tiny.training_params(optimizer={"learning_rates": rates})
    state = build_state(tiny.algorithm_params(), training, 0, task, tiny.make_data(task))
    tiny_attention.shake(state.policy, seed=1)
    checkpoint = snapshot(state, progress={"position": 0, "total_steps": 1})
    save_weights(folder, export_model(task, checkpoint))
    return state.policy


def expected_replies(task: Any, policy: Any) -> list[str]:
    batch = task.make_batch(tiny.make_data(task), ROWS)
    context = task.encode(policy, batch)
    found = greedy_replies(policy, context, max_tokens=task.replies.max_tokens, ends=task.ends)
    return [texts[0] for texts in task.texts(found)]


def written_replies(folder: Path) -> list[str]:
    examples, model = tiny.make_examples(), read_exported(folder)
    known = {row.story_id: story_text(row.title, row.text) for row in examples.stories.itertuples()}
    rows = examples.table.iloc[ROWS]
    return [write_reply(model, q, [known[i] for i in ids]) for q, ids in zip(rows["question"], rows["story_ids"], strict=True)]


@pytest.mark.parametrize(
    ("architecture", "lora"), [("t5", None), ("gpt2", None), ("llama", None), ("t5", {"rank": 2, "alpha": 4.0})]
)
def test_the_same_replies_without_the_folder_that_it_came_from(tmp_path: Path, architecture: str, lora: Any) -> None:
    task = tiny.make_task(reader=model_folder(tmp_path / "hub", architecture) | {"lora": lora})
    policy = export(task, tmp_path / "model")
    expected = expected_replies(task, policy)
    shutil.rmtree(tmp_path / "hub")
    assert written_replies(tmp_path / "model") == expected
    assert any(expected)
    assert {"tokenizer.json", "tokenizer_config.json"} <= {path.name for path in (tmp_path / "model" / "huggingface").iterdir()}


def test_bytes_need_no_tokenizer(tmp_path: Path) -> None:
    task = tiny.make_task()
    policy = export(task, tmp_path / "model")
    assert written_replies(tmp_path / "model") == expected_replies(task, policy)


def test_what_is_no_complete_model_of_this_task_is_refused(tmp_path: Path) -> None:
    export(tiny.make_task(reader=model_folder(tmp_path / "hub", "t5")), tmp_path / "model")
    weights = load_weights(tmp_path / "model")
    save_weights(tmp_path / "before", weights)
    with pytest.raises(FileNotFoundError, match=r"before must hold one of tokenizer.json"):
        read_exported(tmp_path / "before")
    for changes, message in [
        ({"task": "attention"}, "must hold a model of the dialogue task, got 'attention'"),
        ({"reader_config": weights.config["reader_config"] | {"model_type": "bert"}}, "of type t5, gpt2, llama, got 'bert'"),
    ]:
        save_weights(tmp_path / "other", replace(weights, config=weights.config | changes))
        with pytest.raises(ValueError, match=message):
            read_exported(tmp_path / "other")


def test_the_global_random_state_stays(tmp_path: Path) -> None:
    export(tiny.make_task(), tmp_path / "model")
    before = torch.random.get_rng_state()
    read_exported(tmp_path / "model")
    assert torch.equal(torch.random.get_rng_state(), before)
