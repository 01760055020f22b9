"""Any network of transformers, from its folder: its replies, scores and export beside the library's own forward pass."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny_networks import CAUSAL, CHOICES, ENCODER_DECODERS, REFUSED, tiny_network
from tiny_readers import attention, reply_params
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, ViTConfig, ViTModel

from grpo_pipeline.tasks.dialogue.huggingface_folder import plain_model, write_adapter
from grpo_pipeline.tasks.dialogue.language_model.base import LanguageModel, logits_of
from grpo_pipeline.tasks.dialogue.language_model.build import build_from_config, build_language_model
from grpo_pipeline.tasks.dialogue.language_model.byte_tokenizer import ByteTokenizer
from grpo_pipeline.tasks.dialogue.language_model.library_causal import LibraryCausal
from grpo_pipeline.tasks.dialogue.language_model.library_encoder_decoder import LibrarySeq2Seq
from grpo_pipeline.tasks.dialogue.language_model.params import LanguageModelParams
from grpo_pipeline.tasks.dialogue.language_model.reply_rollouts import ReplyRollouts
from grpo_pipeline.tasks.dialogue.language_model.sampling import sample_replies
from grpo_pipeline.tasks.dialogue.language_model.scoring import score_replies
from grpo_pipeline.tasks.dialogue.language_model.teacher_forcing import reference_logprobs
from grpo_pipeline.tasks.dialogue.language_model.tokens import Tokens
from grpo_pipeline.tasks.dialogue.parameter_groups import parameter_groups

LORA = {"kind": "lora", "rank": 2, "alpha": 8.0}
SMALL_VIT = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
LIMITED = {"none": {}, "top_p": {"top_p": 0.8, "temperature": 0.7}}
PROMPTS, GROUP = 3, 4
ENDS = (1, *range(3, 11), 0)  # many, so that finished replies leave the batch


@pytest.fixture(autouse=True)
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    # The tokenizer is not what is tested here: any id of the small embeddings will do.
    monkeypatch.setattr(ByteTokenizer, "size", CHOICES)


def read(path: Path, tuning: Any = None, **changes: Any) -> LanguageModel:
    section = {"network": {"kind": "folder", "path": str(path), "tokenizer": "bytes", **changes}, "tuning": tuning}
    language_model = build_language_model(LanguageModelParams.model_validate(section), seed=0)[0]
    for name, parameter in language_model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(parameter.numel()))
    return language_model


def prompts(language_model: LanguageModel) -> tuple[Tensor, Tensor]:
    """Return ids and is_token [P, n, 8], of lengths 8, 3 and 1; an encoder-decoder reads two texts, of the second prompt one."""
    is_causal = language_model.kind == "causal"
    ids = torch.randint(2, CHOICES, (PROMPTS, 1 if is_causal else 2, 8), generator=torch.Generator().manual_seed(3))
    lengths = torch.tensor([[8], [3], [1]])
    columns = torch.arange(8)
    is_token = (columns >= 8 - lengths if is_causal else columns < lengths)[:, None].expand_as(ids).clone()
    if not is_causal:
        is_token[1, 1] = False
    return torch.where(is_token, ids, 0), is_token


def alone(model: Any, ids: Tensor, is_token: Tensor, reply: Tensor) -> Tensor:
    """Return the library's logits [T, V] of a reply to one prompt, ids and is_token [n, S], without padding and cache."""
    texts = [text[seen] for text, seen in zip(ids, is_token, strict=True) if seen.any()]
    if not model.config.is_encoder_decoder:
        text = torch.cat((texts[0], reply[:-1]))[None]
        return model(input_ids=text, use_cache=False).logits[0, len(texts[0]) - 1 :]
    encoder = model.get_encoder()
    memory = torch.cat([encoder(input_ids=t[None], attention_mask=torch.ones_like(t)[None]).last_hidden_state for t in texts], 1)
    inputs = torch.cat((torch.tensor([model.config.decoder_start_token_id]), reply[:-1]))[None]
    seen = torch.ones(memory.shape[:2], dtype=torch.int64)
    return model(encoder_outputs=(memory,), attention_mask=seen, decoder_input_ids=inputs, use_cache=False).logits[0]


def expected_logprobs(model: Any, texts: tuple[Tensor, Tensor], replies: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the log-probabilities [P, G, T] of replies, one reply at a time."""
    ids, is_token = texts
    rows = [
        (alone(model, ids[p], is_token[p], reply) / temperature).log_softmax(-1).gather(-1, reply[:, None])[:, 0]
        for p, group in enumerate(replies)
        for reply in group
    ]
    return torch.stack(rows).view(replies.shape)


@pytest.mark.parametrize("kind", [*CAUSAL, *ENCODER_DECODERS])
def test_a_folder_of_any_network_writes_scores_and_exports(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path / "from")
    for tuning in (None, LORA):
        language_model = read(tmp_path / "from", tuning)
        texts = prompts(language_model)
        encoded = language_model.encode(*texts)
        for limits in LIMITED.values():
            params = reply_params(max_tokens=9, **limits)
            rollouts = sample_replies(
                language_model, encoded, GROUP, params=params, ends=ENDS, generator=torch.Generator().manual_seed(5)
            )
            with torch.no_grad():
                scored = score_replies(language_model, encoded, rollouts, temperature=params.temperature, tokens_per_batch=60)
            ratios = (scored.logprobs - rollouts.logprobs).exp()[rollouts.is_valid]
            assert (ratios - 1).abs().max() < 2e-5
            assert abs(float(ratios.mean()) - 1) < 1e-6
        # What transformers alone says of the exported network.
        plain_model(language_model).save_pretrained(tmp_path / "to" / str(tuning))
        loader: Any = AutoModelForSeq2SeqLM if kind in ENCODER_DECODERS else AutoModelForCausalLM
        exported, said = loader.from_pretrained(tmp_path / "to" / str(tuning), output_loading_info=True, dtype=torch.float32)
        assert not any(said.values())
        replies = torch.randint(2, CHOICES, (PROMPTS, GROUP, 6), generator=torch.Generator().manual_seed(6))
        with torch.no_grad():
            expected = expected_logprobs(exported.eval(), texts, replies)
            reference = Tokens(replies[:, 0], torch.ones_like(replies[:, 0], dtype=torch.bool))
            found = reference_logprobs(language_model, language_model.encode(*texts), reference)
        torch.testing.assert_close(found, expected[:, 0], rtol=1e-5, atol=1e-5)
    # The updates alone, which peft adds to the network that they were trained beside.
    (folder := tmp_path / "adapter").mkdir()
    write_adapter(language_model, folder)
    start = loader.from_pretrained(tmp_path / "from", dtype=torch.float32)
    added = PeftModel.from_pretrained(start, str(folder)).eval()
    with torch.no_grad():
        again = expected_logprobs(added.get_base_model(), texts, replies)
    torch.testing.assert_close(again, expected, rtol=1e-5, atol=1e-5)
    # Only the low-rank updates are trained, each in one group.
    trained = [p for group in parameter_groups(language_model).values() for p in group]
    names = [name for name, p in language_model.named_parameters() if p.requires_grad]
    assert names
    assert all("lora_" in name for name in names)
    assert len({id(p) for p in trained}) == len(names) == len(trained)


@pytest.mark.parametrize("kind", ["bart", "bloom", "cohere", "gemma2", "gpt2", "llama", "mistral", "mt5", "qwen2", "t5"])
def test_the_gradient_is_that_of_replies_scored_one_by_one(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    language_model = read(tmp_path)
    texts, replies = prompts(language_model), torch.arange(PROMPTS * 2 * 4).view(PROMPTS, 2, 4) + 3
    rollouts = ReplyRollouts(replies, torch.zeros(replies.shape), torch.ones_like(replies, dtype=torch.bool))
    scored = score_replies(language_model, language_model.encode(*texts), rollouts, temperature=0.7, tokens_per_batch=None)
    weights = torch.linspace(-1, 1, replies.numel()).view(replies.shape)
    parameters = [p for p in language_model.parameters() if p.requires_grad]
    found = torch.autograd.grad((scored.logprobs * weights).sum(), parameters)
    with attention(language_model, "eager"):
        expected = expected_logprobs(language_model.model, texts, replies, 0.7)
        gradients = torch.autograd.grad((expected * weights).sum(), parameters)
    torch.testing.assert_close(scored.logprobs, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(found, gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "t5"])
def test_replies_that_share_their_prompt_have_the_scores_of_the_plain_path(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    shared = read(tmp_path)
    plain = (LibrarySeq2Seq if kind == "t5" else LibraryCausal)(tiny_network(kind))
    texts, replies = prompts(shared), torch.arange(PROMPTS * 2 * 4).view(PROMPTS, 2, 4) + 3
    assert type(shared) is not type(plain)
    with torch.no_grad():
        found, expected = (logits_of(m.hidden(m.encode(*texts), replies), m.head) for m in (shared, plain))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_logits_are_taken_from_the_library_where_states_and_head_do_not_give_them(tmp_path: Path) -> None:
    # Capped, scaled, divided, and T5's kin, of which the library gives no states without logits.
    for kind in ("gemma2", "cohere", "granite", "mt5"):
        tiny_network(kind).save_pretrained(tmp_path / kind)
        assert read(tmp_path / kind).head is None, kind
    for kind in ("qwen2", "mistral", "opt", "bart"):
        tiny_network(kind).save_pretrained(tmp_path / kind)
        assert read(tmp_path / kind).head is not None, kind


@pytest.mark.parametrize("kind", ["gemma2", "mt5", "qwen3"])
def test_the_configuration_alone_builds_the_same_network(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    language_model = read(tmp_path, LORA)
    section = {"network": {"kind": "folder", "path": "gone", "tokenizer": "bytes"}, "tuning": LORA}
    again = build_from_config(language_model.model.config.to_dict(), LanguageModelParams.model_validate(section))
    again.load_state_dict(language_model.state_dict())
    texts, replies = prompts(again), torch.full((PROMPTS, 1, 4), 7)
    with torch.no_grad():
        assert torch.equal(*(m.hidden(m.encode(*texts), replies) for m in (again, language_model)))


SAME = "must say the same from its cache as in one forward pass, got log-probabilities apart by"
CACHE = "must hold a network that continues a text from keys"


@pytest.mark.parametrize(("kind", "reason"), [("bert", SAME), ("m2m_100", SAME), ("mamba", CACHE)])
def test_a_network_that_draws_otherwise_than_it_scores_is_refused(kind: str, reason: str, tmp_path: Path) -> None:
    assert kind in REFUSED
    tiny_network(kind).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=rf"{reason}.*; give another model"):
        read(tmp_path)


def test_a_folder_without_a_head_or_of_a_network_that_writes_nothing_is_refused(tmp_path: Path) -> None:
    tiny_network("stablelm").base_model.save_pretrained(tmp_path / "headless")
    with pytest.raises(ValueError, match=r"must hold all weights of a StableLmForCausalLM, got none of lm_head.weight; save"):
        read(tmp_path / "headless")
    ViTModel(ViTConfig(**SMALL_VIT)).save_pretrained(tmp_path / "pictures")
    with pytest.raises(ValueError, match="must hold a causal language model or an encoder-decoder"):
        read(tmp_path / "pictures")


@pytest.mark.parametrize("kind", ["qwen2", "gpt2", "bart"])
def test_frozen_weights_in_half_precision_have_updates_in_float32(kind: str, tmp_path: Path) -> None:
    tiny_network(kind).save_pretrained(tmp_path)
    language_model = read(tmp_path, LORA, weights="bfloat16")
    for name, parameter in language_model.named_parameters():
        assert parameter.dtype == (torch.float32 if parameter.requires_grad else torch.bfloat16), name
    rollouts = sample_replies(
        language_model, language_model.encode(*prompts(language_model)), GROUP, params=reply_params(max_tokens=9), ends=ENDS,
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    scored = score_replies(
        language_model, language_model.encode(*prompts(language_model)), rollouts, temperature=1.0, tokens_per_batch=None
    )
    # bfloat16 has 8 bits: the ratios are those of a rounded network, and not far from 1.
    assert scored.logprobs.dtype == torch.float32
    assert (scored.logprobs - rollouts.logprobs)[rollouts.is_valid].abs().max() < 0.2
    trained = [p for p in language_model.parameters() if p.requires_grad]
    assert all(bool(g.isfinite().all()) for g in torch.autograd.grad(scored.logprobs.sum(), trained))


def test_all_weights_in_half_precision_are_not_trained(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="network.weights must be float32 where all weights are trained, got bfloat16, which rounds"
    ):
        read(tmp_path, weights="bfloat16")
