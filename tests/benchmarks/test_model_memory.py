"""The arithmetic of models in memory against published numbers of weights."""

import pytest
from benchmark_scripts import load_benchmark

bench = load_benchmark("model_memory")
# Of the model cards, and of peft's print_trainable_parameters.
PUBLISHED = {
    "GPT-2": (124_439_808, None),
    "Llama 3.2 1B": (1_235_814_400, 11_272_192),
    "Llama 3.2 3B": (3_212_749_824, 24_313_856),
    "Llama 2 7B": (6_738_415_616, 39_976_960),
}


@pytest.mark.parametrize("family", PUBLISHED)
def test_weights_and_updates_are_those_that_are_published(family: str) -> None:
    found = bench.counts(bench.FAMILIES[family])
    weights, updates = PUBLISHED[family]
    assert found["weights"] == weights
    assert updates is None or found["updates"] == updates


def test_keys_and_values_of_a_token_and_bytes_of_a_training() -> None:
    # 8 heads of keys of width 128 in 28 layers, keys and values, 4 bytes each.
    assert bench.counts(bench.FAMILIES["Llama 3.2 3B"])["token"] == 2 * 8 * 128 * 28 * 4
    assert bench.held(1e9, 1e7) == {
        "all, float32": 20e9,
        "LoRA, float32": 4.2e9,
        "LoRA, bfloat16 weights": 2.2e9,
    }
