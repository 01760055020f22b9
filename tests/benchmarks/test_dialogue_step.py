"""The benchmark measures what it says: all contenders do the same work, and ratios are taken within rounds."""

from dataclasses import replace

import pytest
import torch
from benchmark_scripts import load_benchmark
from transformers import AutoModelForCausalLM

from grpo_pipeline.tasks.dialogue.language_model.tokens import OFFSET, ByteTokenizer

bench = load_benchmark("dialogue_step")

from dialogue_contenders import agreement, turns, with_trl, workload  # noqa: E402
from dialogue_contenders.plain_loop import PlainLoop  # noqa: E402
from dialogue_contenders.with_pipeline import PipelineStep  # noqa: E402

TINY = bench.QUICK
needs_trl = pytest.mark.skipif(not with_trl.is_installed(), reason=f"TRL is not installed: {with_trl.INSTALL}")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(workload.write_start(TINY, tmp_path_factory.mktemp("start")))


def test_the_end_is_never_drawn_and_other_tokens_are(start: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(start).eval()
    ids = torch.randint(0, 259, (20, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        probabilities = model(ids).logits.softmax(dim=-1)
    assert float(probabilities[..., :OFFSET].max()) < 1e-30
    assert float(probabilities[..., OFFSET:].max()) < 0.2


def test_prompts_have_one_length_and_end_with_the_cue() -> None:
    for tokens in (24, 256, 700):
        work = replace(TINY, prompt_tokens=tokens, prompts=4)
        assert work.ids.shape == (4, tokens)
        assert all(text.endswith(" reply:") for text in work.texts)
        assert len(set(work.texts)) == 4
        assert all(work.answers)


@needs_trl
def test_trl_has_the_same_tokens() -> None:
    text = "".join(map(chr, range(0x20, 0x500))) + "\n\t"
    tokenizer, ours = with_trl.byte_tokenizer(), ByteTokenizer()
    ids = tokenizer(text=[text])["input_ids"][0]
    assert ids == ours.encode(text)
    broken = [200, 5, 0, 2, 70, 1, 71]
    for tokens in (ids, broken):
        assert tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False) == ours.decode(tokens)


def test_all_contenders_have_the_gradient_of_our_update(start: str) -> None:
    found = agreement.gradients(TINY, start, with_trl=with_trl.is_installed())
    assert len(found) == 2 + with_trl.is_installed()
    assert len({frozenset(gradients) for gradients in found.values()}) == 1
    for name, distance in agreement.distances(found).items():
        assert distance < 1e-5, name
    assert all(float(gradient.norm()) > 0 for gradient in found[turns.OURS].values())


def test_every_step_writes_all_tokens_and_moves_the_weights(start: str) -> None:
    for name in (turns.PLAIN, turns.OURS, turns.HYBRID):
        step = turns.make_step(name, TINY, start)
        owner = step.__self__
        model = owner.model if name == turns.PLAIN else owner.state.policy.model
        before = {key: value.clone() for key, value in model.state_dict().items()}
        assert step() == TINY.samples * TINY.new_tokens
        assert sum(not torch.equal(value, before[key]) for key, value in model.state_dict().items()) > 20


def test_the_naive_loop_and_our_step_end_near_the_same_weights_from_the_same_replies(start: str) -> None:
    """One step of AdamW from equal gradients: the optimisers and the clipping are the same."""
    ours, plain = PipelineStep(TINY, start), PlainLoop(TINY, start)
    experience = agreement.draw(ours)
    replies = experience.rollouts.actions.flatten(0, 1)
    plain.write = lambda prompts: replies
    plain.step()
    ours.step()  # draws the same replies again: the same seed and step
    theirs = dict(plain.model.named_parameters())
    start_weights = AutoModelForCausalLM.from_pretrained(start).state_dict()
    for name, weight in ours.state.policy.model.named_parameters():
        moved, expected = (w.detach() - start_weights[name] for w in (weight, theirs[name]))
        # Adam divides by the size of a gradient: where it is rounding alone, the sign of a step is, too.
        is_settled = (moved - expected).abs() < 0.05 * workload.LEARNING_RATE
        assert float(is_settled.float().mean()) > 0.98, name


def test_other_sizes_change_one_thing_at_a_time() -> None:
    first = workload.Workload()
    found = [(size.group_size, size.new_tokens) for size in bench.sizes(first, "all")]
    assert found == [(8, 32), (4, 32), (16, 32), (8, 64), (8, 128)]
    assert bench.sizes(first, "one") == [first]


def test_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the child processes, of which the last test starts one."""
    monkeypatch.setattr(with_trl, "is_installed", lambda: False)
    monkeypatch.setattr(bench, "_ask", lambda question, work, threads: bench.answer(question, work))
    monkeypatch.setattr(bench, "_version", lambda name: "not installed" if name == "trl" else "1.0")
    two = [TINY, replace(TINY, group_size=3)]
    found = bench.make_report(two, rounds=1, threads=1, memory=True)
    text = bench.format_report(found)
    assert "TRL is not installed; for the comparison: `pip install" in text
    assert "| ours |" in text
    assert "| group size | 2 | 3 |" in text
    assert "Wanted" not in text
    assert all(name in text for name in ("commit", "seed 0", "threads 1", "plain loop", "ours, hybrid"))
    sizes = found["sizes"]
    assert f"{TINY.samples / sizes[0]['wall']['ours'][0]:.1f}" in text
    assert all(0 < m["held"] <= m["peak"] for m in sizes[0]["memory"].values())
    with_all = {**found, "sizes": [{**size, "wall": {turns.TRL: [9.0], **size["wall"]}} for size in sizes]}
    for size in with_all["sizes"]:
        size["cpu"] = {turns.TRL: [5.0], **size["cpu"]}
    assert "Wanted: TRL takes at least 2.5 times" in bench.format_report(with_all)
