"""The benchmark measures what it says: the naive loop is the same algorithm, and its passes are counted right."""

import copy

import pytest
import torch
from benchmark_scripts import load_benchmark
from loss_terms import mixed_losses
from mlflow import MlflowClient
from tiny_attention import judge

from grpo_pipeline.pipelines.step import sampling
from grpo_pipeline.pipelines.training.loop import StepRunner

bench = load_benchmark("attention_step")


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
    context = sampling.encode_batch(task, state, setting.batch)
    replicated = sampling.replicate_batch(training, task, setting.batch)
    experience = judge(task, setting.grpo, state, replicated, context, rollouts, 1.0)
    torch.testing.assert_close(experience.rewards.total, rewards.total, rtol=1e-5, atol=1e-6)
    losses, _ = mixed_losses(setting.grpo, training, task, state, experience, 0)
    losses.total.backward()
    gradients = {name: p.grad for name, p in state.policy.named_parameters() if p.grad is not None}
    assert gradients.keys() == naive.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(naive[name], gradient, rtol=1e-3, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_plain_calls_and_the_fold_end_with_the_same_weights(setting) -> None:
    plain, folded = setting.start(setting.grpo), setting.start(setting.grpo)
    before = copy.deepcopy(plain.policy.state_dict())
    bench.plain_step(setting, plain)
    StepRunner(setting.task, setting.grpo, setting.training)(folded, setting.batch)
    after = folded.policy.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in plain.policy.state_dict().items())
    assert sum(not torch.equal(value, after[name]) for name, value in before.items()) > 10


def test_passes_through_the_encoder(setting) -> None:
    """Naive: one rollout per sample, then every sample again in every epoch; the policy has an encoder of its own."""
    group_size, epochs = setting.training.group_size, setting.grpo.update_epochs
    assert setting.task.model.policy.reads.encoder == "own"
    passes = bench.count_encoder_passes(setting, bench.make_steps(setting))
    assert passes == {
        "supervised": 2,
        "grpo once": 2,
        "grpo every_epoch": 2 * epochs,
        "grpo with report": 2,
        "frozen, encoded": 1,
        "frozen, cached": 0,
        "naive": 2 * (group_size + epochs * group_size),
        "floor": 2,
        "floor + policy passes": 2,
        "floor, SAM alone": 1,
    }


def test_the_tracked_block_writes_its_rows_into_the_store_before_it_ends(setting, tmp_path) -> None:
    with bench.open_runs(tmp_path) as runs:
        blocks = bench.make_blocks(setting, runs, tmp_path, length=2)
        blocks["tracked"]()
        store = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
        (child,) = (run for run in store.search_runs(["1"]) if "mlflow.parentRunId" in run.data.tags)
        assert [point.step for point in store.get_metric_history(child.info.run_id, "reward/mean")] == [0, 1]
    (parent,) = (run for run in store.search_runs(["1"]) if "mlflow.parentRunId" not in run.data.tags)
    assert parent.info.status == "FINISHED"
    assert len((tmp_path / "metric_rows.jsonl").read_text().splitlines()) == 2
