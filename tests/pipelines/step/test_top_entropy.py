"""The decisions of which the policy was least sure teach, whatever the batch is cut into and however often it is used."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tiny_attention import algorithm_params, make_batch, make_data, make_state, make_task, merge, training_params
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.types import Scores
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.start import build_state

TRAINING = own_rates(training_params(epochs=1, batch_size=8, group_size=4, temperature={"start": 1.0}), 0.3)
ARM: dict[str, Any] = {
    "losses": {"policy": {"kind": "grpo", "top_entropy": 0.25}},
    "update_epochs": 2, "advantage": {"method": "mean_only"},
}  # fmt: skip


@dataclass(frozen=True)
class Placed(TinyChoices):
    """The entropy of a decision grows with its place in the sample."""

    def score(self, *args: Any, **kwargs: Any) -> Scores:
        found = super().score(*args, **kwargs)
        places = torch.arange(found.logprobs.shape[2], dtype=found.logprobs.dtype)
        return Scores(found.logprobs, found.entropy, entropies=places.expand_as(found.logprobs))


@pytest.mark.parametrize("size", [None, 3])
def test_the_last_decisions_teach_where_they_are_the_least_sure(size: int | None) -> None:
    task, algorithm = Placed(), AlgorithmParams.model_validate(ARM)
    training = TRAINING.model_copy(update={"micro_batch_size": size})
    state = build_state(algorithm, training, 0, task, None)
    done = StepRunner(task, algorithm, training).run(state, task.make_batch(None, task.rows(None, "train")))
    rollouts, values = done.experience.rollouts, done.experience.advantages.values
    wanted = int(torch.ceil(0.25 * rollouts.is_valid.sum()))
    longest = rollouts.is_valid[..., 2].sum()
    assert longest >= wanted  # as many samples have a third decision as are wanted, and these tie
    plain = done.experience.rewards.total - done.experience.rewards.total.mean(1, keepdim=True)
    assert torch.equal(values[..., :2], torch.zeros_like(values[..., :2]))
    torch.testing.assert_close(values[..., 2], plain.masked_fill(~rollouts.is_valid[..., 2], 0.0))


def test_a_task_without_entropies_of_decisions_is_told_so() -> None:
    task, data = make_task(), make_data()
    algorithm = algorithm_params(losses={"policy": {"top_entropy": 0.2}})
    runner = StepRunner(task, algorithm, training_params())
    with pytest.raises(ValueError, match=r"losses.policy.top_entropy must be null for the task attention, got 0.2; its score"):
        runner(make_state(task, data, algorithm), make_batch(task))


def test_where_all_samples_of_a_prompt_tie_nothing_teaches() -> None:
    task, algorithm = TinyChoices(), AlgorithmParams.model_validate(merge(ARM, {"losses": {"policy": {"top_entropy": 0.9}}}))
    state = build_state(algorithm, TRAINING, 0, task, None)
    done = StepRunner(task, algorithm, TRAINING).run(state, task.make_batch(None, task.rows(None, "train")))
    found = done.experience.advantages
    assert not found.values[found.is_tied].any()
    assert bool(found.is_tied.any())
