"""The benchmark measures what it says: the naive loop is the same algorithm, and its passes are counted right."""

import copy
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tiny_attention import judge

from grpo_pipeline.pipelines.step import collect, update
from grpo_pipeline.pipelines.training.loop import Fold

ROOT = Path(__file__).resolve().parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attention_step", ROOT / "benchmarks" / "attention_step.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bench = load()


@pytest.fixture(scope="module")
def setting():
    return bench.build_setting(bench.read_parameters("base", "smoke"), group_size=4, seed=0)


def move_off_uniform(state) -> None:
    """An untrained policy is uniform and at the reference: KL, entropy and their gradients would be 0 there."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        weight = state.policy.policy.attention.weight
        weight.add_(torch.randn(weight.shape, generator=generator))


def test_an_epoch_of_the_naive_loop_has_the_gradient_of_our_first_update(setting) -> None:
    state = setting.start(setting.grpo)
    move_off_uniform(state)
    rollouts, rewards = bench.naive_rollouts(setting, state)
    bench.naive_epoch(setting, state, rollouts, rewards)
    naive = {name: p.grad.clone() for name, p in state.policy.named_parameters() if p.grad is not None}
    state.optimizer.zero_grad()

    task, training = setting.task, setting.training
    context = collect.encode_batch(task, state, setting.batch)
    replicated = collect.replicate_batch(training, task, setting.batch)
    experience = judge(task, setting.grpo, state, replicated, context, rollouts, 1.0)
    torch.testing.assert_close(experience.rewards.total, rewards.total, rtol=1e-5, atol=1e-6)
    terms, diagnostics = update.policy_terms(setting.grpo, training, task, state, experience, 0)
    supervised = update.supervised_term(task, state, experience, 0)
    update.mix_losses(setting.grpo, task, state, terms, supervised, diagnostics).total.backward()
    gradients = {name: p.grad for name, p in state.policy.named_parameters() if p.grad is not None}
    assert gradients.keys() == naive.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(naive[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_plain_calls_and_the_fold_end_with_the_same_weights(setting) -> None:
    plain, folded = setting.start(setting.grpo), setting.start(setting.grpo)
    before = copy.deepcopy(plain.policy.state_dict())
    bench.plain_step(setting, plain)
    Fold(setting.task, setting.grpo, setting.training)(folded, setting.batch)
    after = folded.policy.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in plain.policy.state_dict().items())
    assert sum(not torch.equal(value, after[name]) for name, value in before.items()) > 10


def test_passes_through_the_encoder(setting) -> None:
    """Naive: one rollout per sample, then every sample again in every epoch."""
    group_size, epochs = setting.training.group_size, setting.grpo.update_epochs
    assert bench.count_encoder_passes(setting, bench.make_steps(setting)) == {
        "supervised": 1,
        "grpo once": 1,
        "grpo every_epoch": epochs,
        "grpo with report": 1,
        "frozen, encoded": 1,
        "frozen, cached": 0,
        "naive": group_size + epochs * group_size,
        "floor": 1,
        "floor + policy passes": 1,
        "floor, SAM alone": 1,
    }


def test_ratios_are_taken_within_rounds() -> None:
    """2/1, 9/3, 4/4 -> 2, 3, 1."""
    assert bench.ratio([2.0, 9.0, 4.0], [1.0, 3.0, 4.0]) == bench.Spread(2.0, 1.0, 3.0)
    assert bench.percent(bench.Spread(1.5, 1.0, 2.0), 0.5) == bench.Spread(25.0, 0.0, 50.0)


def test_every_step_has_its_turn_and_the_order_turns() -> None:
    seen: list[str] = []
    seconds = bench.take_turns({name: lambda name=name: seen.append(name) for name in "abc"}, rounds=2)
    assert "".join(seen) == "cab" + "abc" + "bca"
    assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 2, "c": 2}


def test_a_size_measures_the_steps_alone(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--batch-size", "3", "--micro-batch-size", "2", "--precision", "bf16", "--device", "cpu", "--image-size", "64"]
    bench.main(["--size", "tiny", "--repeats", "1", "--threads", "1", "--json", *options])
    found = json.loads(capsys.readouterr().out)
    expected = {"batch_size": 3, "micro_batch_size": 2, "precision": "bf16", "compile": "none", "image_size": 64}
    assert found["machine"].items() >= expected.items()
    assert found["encoder_passes"]["grpo once"] == 2 * 2  # two micro-batches, to collect and to update
    assert found["encoder_passes"]["frozen, cached"] == 0
    figure = found["milliseconds"]["frozen, encoded"] / found["milliseconds"]["frozen, cached"]
    assert found["figures"]["frozen, encoded / cached"]["median"] == pytest.approx(figure)
    assert found["figures"].keys() >= bench.WANTED_OF_VIT_B.keys()
    assert not any("overhead" in name for name in found["figures"])
    text = bench.format_report(found, bench.WANTED_OF_VIT_B)
    assert all(wanted in text for wanted in (">= 15", "<= 1.15", ">= 20"))


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--smoke", "--repeats", "1", "--threads", "1", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["machine"]["group_size"] == 4
    assert found["machine"]["torch"] == torch.__version__
    steps = found["encoder_passes"].keys()
    assert found["milliseconds"].keys() == found["peak_memory_mb"].keys() == steps
    assert min(found["milliseconds"].values()) > 0
    figures = found["figures"]
    assert all(value["low"] <= value["median"] <= value["high"] for value in figures.values())
    expected = found["milliseconds"]["naive"] / found["milliseconds"]["grpo once"]
    assert figures["naive / ours"]["median"] == pytest.approx(expected)
    assert figures.keys() >= bench.WANTED.keys()
    text = bench.format_report(found)
    assert f"{figures['naive / ours']['median']:.2f}" in text
    assert all(name in text for name in [*steps, *figures, "commit", "seed 0", ">= 8", "<= 1.2"])
