"""State what language models of 0.1 to 7 billion weights need to be trained, by arithmetic, and measure the smallest.

    python benchmarks/model_memory.py            (arithmetic, and steps of the 12 layers of GPT-2 in a process for each way)
    python benchmarks/model_memory.py --counts   (arithmetic alone; seconds)

Weights are counted on networks without storage, from the published sizes of their families. Bytes of what lives through a
whole training, for N weights, R of them trained:

    all, float32                 4 N weights + 4 N gradient + 8 N moments of AdamW + 4 N reference
    LoRA, float32                4 N + 16 R + 4 R reference
    LoRA, bfloat16 weights       2 N + 16 R + 4 R reference

A reference is there for a KL to the start alone. With LoRA it shares the frozen weights. Beside these there are the keys and
values of prompts and replies while they are drawn, 2 * layers * heads of keys * width of a head numbers of each token, and the
activations of an update, which grow with its tokens: fewer of them at once with ``training.micro_batch_size`` and
``replies.tokens_per_batch``.

The measured rows are the 12 layers of GPT-2 over bytes: random weights, 2 prompts of 256 tokens, 4 replies of 64 tokens each.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch
from dialogue_contenders.turns import OURS, memory_of
from dialogue_contenders.workload import Workload, write_start
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PretrainedConfig
from transformers.pytorch_utils import Conv1D

GIB = 2**30
RANK = 16
MEASURED = Workload(
    prompts=2, prompt_tokens=256, group_size=4, new_tokens=64, width=768, layers=12, heads=12
)
WAYS = {
    "all, float32": MEASURED,
    "LoRA, float32": replace(MEASURED, rank=RANK),
    "LoRA, bfloat16 weights": replace(MEASURED, rank=RANK, weights="bfloat16"),
}


def llama(
    width: int, layers: int, heads: int, kv_heads: int, inner: int, **more: Any
) -> LlamaConfig:
    """Return the sizes of a Llama."""
    return LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        **more,
    )


FAMILIES: dict[str, PretrainedConfig] = {
    "GPT-2": GPT2Config(),
    "Llama 3.2 1B": llama(2048, 16, 32, 8, 8192, vocab_size=128256, tie_word_embeddings=True),
    "Llama 3.2 3B": llama(3072, 28, 24, 8, 8192, vocab_size=128256, tie_word_embeddings=True),
    "Llama 2 7B": llama(4096, 32, 32, 32, 11008, vocab_size=32000),
}


def counts(config: PretrainedConfig) -> dict[str, float]:
    """Count weights, weights of low-rank updates of all linear layers but the head, and bytes of a token's keys and values."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head = model.get_output_embeddings()
    layers = [
        part
        for part in model.modules()
        if isinstance(part, nn.Linear | Conv1D) and part is not head
    ]
    trained = sum(RANK * sum(layer.weight.shape) for layer in layers)
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    numbers = (
        2 * config.num_hidden_layers * heads * config.hidden_size // config.num_attention_heads
    )
    return {"weights": model.num_parameters(), "updates": trained, "token": 4 * numbers}


def held(n: float, r: float) -> dict[str, float]:
    """Compute the bytes of each way of training."""
    return {
        "all, float32": 20 * n,
        "LoRA, float32": 4 * n + 20 * r,
        "LoRA, bfloat16 weights": 2 * n + 20 * r,
    }


def measure(name: str, *, again: bool) -> dict[str, float]:
    """Measure a way in a process of its own: MB held before the first step, and at the highest of two steps."""
    command = [sys.executable, __file__, "--way", name, *(["--again"] if again else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured_here(workload: Workload) -> dict[str, float]:
    """Take two steps of a way in this process."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_start(workload, Path(folder))
        return memory_of(OURS, workload, folder)


def table(found: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Format what is held of each family and way, GiB."""
    lines = [
        f"| network | weights | updates of rank {RANK} | "
        + " | ".join(WAYS)
        + " | keys and values of 1000 tokens, float32 |",
        "|---|---|---|" + "---|" * (len(WAYS) + 1),
    ]
    for name, one in found.items():
        whole = held(one["weights"], one["updates"])
        cells = [f"{whole[way] / GIB:.1f}" for way in WAYS]
        lines.append(
            f"| {name} | {one['weights'] / 1e9:.2f} billion | {one['updates'] / 1e6:.1f} million | {' | '.join(cells)} | "
            f"{1000 * one['token'] / GIB:.2f} |"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", action="store_true", help="the arithmetic alone")
    parser.add_argument("--way", choices=WAYS, help="measure one in this process")
    parser.add_argument("--again", action="store_true", help="layers compute themselves again")
    options = parser.parse_args(arguments)
    if options.way:
        workload = replace(WAYS[options.way], recompute_layers=options.again)
        print(json.dumps(measured_here(workload)))
        return
    print("GiB that live through a training:\n")
    print("\n".join(table({name: counts(config) for name, config in FAMILIES.items()})))
    if options.counts:
        return
    print(
        "\nMeasured, GiB of the process: 12 layers of GPT-2 over bytes, 2 prompts of 256 tokens, 4 replies of 64 each\n"
    )
    print(
        "| way | layers again | before the first step | highest of two steps |\n|---|---|---|---|"
    )
    for name, again in product(WAYS, (False, True)):
        one = measure(name, again=again)
        numbers = f"{one['held'] / 1024:.2f} | {one['peak'] / 1024:.2f}"
        print(f"| {name} | {'yes' if again else 'no'} | {numbers} |", flush=True)


if __name__ == "__main__":
    main()
