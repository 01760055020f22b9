"""The benchmark measures what it says: all contenders do the same work, and ratios are taken within rounds."""

from dataclasses import replace

import pytest
from benchmark_scripts import load_benchmark

from grpo_pipeline.tasks.dialogue.language_model.tokens import ByteTokenizer

bench = load_benchmark("dialogue_step")

from dialogue_contenders import agreement, turns, with_trl, workload  # noqa: E402

TINY = bench.QUICK
needs_trl = pytest.mark.skipif(not with_trl.is_installed(), reason=f"TRL is not installed: {with_trl.INSTALL}")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(workload.write_start(TINY, tmp_path_factory.mktemp("start")))


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
