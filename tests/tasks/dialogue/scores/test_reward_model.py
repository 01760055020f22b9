"""A classifier's folder as reward, beside the pipeline of transformers."""

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedTokenizerFast, pipeline

from grpo_pipeline.rewards.calling import call_function
from grpo_pipeline.rewards.functions import load_function
from grpo_pipeline.rewards.measure import Measure
from grpo_pipeline.rewards.measure_check import check_measure
from grpo_pipeline.tasks.dialogue.scores.reward_model import reward_model

PATH = "grpo_pipeline.tasks.dialogue.scores.reward_model:reward_model"
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "what", "is", "red", "blue", "green"]
SIZES = {"vocab_size": len(WORDS), "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
PROMPTS, REPLIES = ["what is red", "what", "is what what what"], ["blue", "green red", "blue"]


def folder(path: Path, labels: int, kind: type = BertForSequenceClassification) -> str:
    core = Tokenizer(models.WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(labels)
        kind(BertConfig(**SIZES, num_labels=labels)).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize("labels", [1, 2])
def test_logits_are_those_of_the_librarys_pipeline(tmp_path: Path, labels: int) -> None:
    classify = pipeline("text-classification", model=(path := folder(tmp_path, labels)), function_to_apply="none", top_k=None)
    found = reward_model(REPLIES, prompts=PROMPTS, folder=path)
    for prompt, reply, value in zip(PROMPTS, REPLIES, found, strict=True):
        told = {one["label"]: one["score"] for one in classify({"text": prompt, "text_pair": reply})}
        expected = told["LABEL_0"] if labels == 1 else told["LABEL_1"] - told["LABEL_0"]
        assert value == pytest.approx(expected, abs=1e-6)
    assert len({round(value, 6) for value in found}) == 3


def test_it_is_an_own_reward_whose_value_depends_on_no_neighbour(tmp_path: Path) -> None:
    measure = Measure(PATH, {"folder": folder(tmp_path, 1), "max_tokens": 6})
    check_measure(measure)
    texts = [(prompt, "an answer") for prompt in PROMPTS]
    together = call_function(load_function(PATH), measure.options, REPLIES, texts)
    alone = [call_function(load_function(PATH), measure.options, [r], [t])[0] for r, t in zip(REPLIES, texts, strict=True)]
    assert together == alone
    # Six tokens: [CLS], two of the prompt, [SEP], the reply, [SEP].
    assert together[2] == reward_model(["blue"], prompts=["is what"], folder=measure.options["folder"])[0]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must have one or two classes, got 3; give a reward model"):
        reward_model(REPLIES, prompts=PROMPTS, folder=folder(tmp_path / "three", 3))
    with pytest.raises(ValueError, match=r"must hold a trained classifier, got none of bert.pooler.dense.bias, .*; save it with"):
        reward_model(REPLIES, prompts=PROMPTS, folder=folder(tmp_path / "headless", 1, BertForMaskedLM))
    with pytest.raises(FileNotFoundError, match="must hold config.json and model.safetensors"):
        reward_model(REPLIES, prompts=PROMPTS, folder=str(tmp_path / "nowhere"))
