"""Check that temperatures, numbers of samples, noise, weights and prompts arrive in what a step asks of its task and hands on."""

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny_attention import algorithm_params, make_state, training_params
from tiny_choices import TinyChoices, own_rates

from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.types import ReferenceScores, Rollouts, Scores
from grpo_pipeline.pipelines.step import advantages, experience, in_micro_batches, pieces
from grpo_pipeline.pipelines.step.arm_parts import Parts
from grpo_pipeline.pipelines.step.parts import kl, kl_in_reward, value
from grpo_pipeline.pipelines.step.parts.credit import credit_samples
from grpo_pipeline.pipelines.training.loop import StepRunner

F64 = torch.float64
SEED, STEP, TOTAL, GROUP = 6, 3, 11, 4
TEMPERATURE = {"kind": "linear", "start": 1.7, "end": 0.7}  # step 3 of 0..10: 1.4


@dataclass
class Asked(TinyChoices):
    """Notes what it is asked for; all samples earn the same, so that every group is drawn again."""

    drawn: list[Any] = field(default_factory=list)
    scored: list[Any] = field(default_factory=list)
    repeated: list[int] = field(default_factory=list)

    def replicate(self, batch: Any, group_size: int) -> Any:
        self.repeated.append(group_size)
        return super().replicate(batch, group_size)

    def sample(self, *given: Any, temperature: float, proposal: str, generator: Any) -> Rollouts:
        self.drawn.append((given[2], round(temperature, 12), proposal, generator.initial_seed()))
        return super().sample(*given, temperature=temperature, proposal=proposal, generator=generator)

    def score(self, *given: Any, temperature: float) -> Scores:
        self.scored.append(("score", round(temperature, 12)))
        return super().score(*given, temperature=temperature)

    def score_reference(self, *given: Any, temperature: float) -> ReferenceScores:
        self.scored.append(("score_reference", round(temperature, 12)))
        return super().score_reference(*given, temperature=temperature)

    def reward(self, *given: Any) -> Any:
        parts, weights = super().reward(*given)
        return {name: torch.ones_like(part) for name, part in parts.items()}, weights


class Unscored(Asked):
    """Measures no sample."""

    def reward(self, *args: Any) -> Any:
        parts, weights = TinyChoices.reward(self, *args)
        return {name: torch.full_like(part, torch.nan) for name, part in parts.items()}, weights


def test_a_term_that_no_piece_of_a_step_counts_is_0_and_not_0_divided_by_0() -> None:
    losses = {"supervised": {"weight": 0.5}, "value": {"weight": 0.5}, "kl": None}
    task, algorithm = Unscored(), algorithm_params(losses=losses)
    training = own_rates(training_params(batch_size=5, group_size=GROUP, micro_batch_size=2), 0.1)
    state = make_state(task, None, algorithm, training)
    assert StepRunner(task, algorithm, training).run(state, task.make_batch(None, np.arange(5))).metrics["value/loss"] == 0.0


class WithKl(Asked):
    """Gives the KL to a reference beside its scores."""

    def score_with_kl(self, policy: Any, context: Any, rollouts: Any, *, reference: Any, temperature: float) -> Scores:
        self.scored.append(("score_with_kl", round(temperature, 12), reference))
        scores = TinyChoices.score(self, policy, context, rollouts, temperature=temperature)
        return replace(scores, kl=torch.zeros_like(scores.logprobs))


def stepped(task: Asked, micro_batch_size: int | None, estimator: str) -> Any:
    losses = {"supervised": {"weight": 0.5}, "value": {"weight": 0.5, "clip": 0.2}, "kl": {"weight": 0.3, "estimator": estimator}}
    algorithm = algorithm_params(dynamic_sampling={"max_retries": 2}, losses=losses, update_epochs=2)
    training = training_params(batch_size=5, group_size=GROUP, temperature=TEMPERATURE, micro_batch_size=micro_batch_size)
    training = own_rates(training, 0.1)
    state = replace(make_state(task, None, algorithm, training, seed=SEED), step=STEP, total_steps=TOTAL)
    StepRunner(task, algorithm, training).run(state, task.make_batch(None, np.arange(5)))
    return state


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_every_call_has_the_temperature_of_the_step_and_every_draw_noise_of_its_own(micro_batch_size: int | None) -> None:
    task = Asked()
    stepped(task, micro_batch_size, "k3")

    def seed(stream: Stream, *places: int) -> int:
        return step_generator(SEED, STEP, *places, stream=stream).initial_seed()

    assert task.drawn == [
        (GROUP, 1.4, "policy", seed(Stream.ROLLOUTS)),
        (GROUP, 1.4, "policy", seed(Stream.RETRIES, 1)),
        (GROUP, 1.4, "policy", seed(Stream.RETRIES, 2)),
    ]
    assert set(task.scored) == {("score", 1.4), ("score_reference", 1.4)}
    assert task.repeated == [GROUP]


@pytest.mark.parametrize("micro_batch_size", [None, 2])
def test_a_task_that_gives_the_kl_is_asked_for_it_at_the_temperature_of_the_step(micro_batch_size: int | None) -> None:
    task = WithKl()
    state = stepped(task, micro_batch_size, "exact")
    asked = [call for call in task.scored if call[0] == "score_with_kl"]
    pieces = 1 if micro_batch_size is None else 3
    assert asked == [("score_with_kl", 1.4, state.reference)] * (2 * pieces)  # two update epochs
    assert not [call for call in task.scored if call[0] == "score_reference"]


@pytest.mark.parametrize(
    ("estimator", "per_decision"),
    # log p - log q = 0.5 and -0.25; k3 is exp(-d) - 1 + d.
    [
        ("k1", (0.5, -0.25)),
        ("k2", (0.125, 0.03125)),
        ("k3", (math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25)),
    ],
)
def test_the_kl_in_the_reward_is_that_of_its_estimator_and_weight(estimator: str, per_decision: tuple[float, float]) -> None:
    weight = {"kind": "linear", "start": 1.0, "end": 3.0}
    algorithm = algorithm_params(losses={"kl": None}, kl_in_reward={"weight": weight, "estimator": estimator})
    state = SimpleNamespace(step=5, total_steps=11)  # the weight is 2
    is_valid = torch.tensor([[[True, True], [True, False]]])
    drawn = Rollouts(torch.zeros(1, 2, 2, dtype=torch.long), torch.tensor([[[-1.0, -1.0], [-1.0, 9.0]]], dtype=F64), is_valid)
    reference = ReferenceScores(torch.tensor([[[-1.5, -0.75], [-1.5, -9.0]]], dtype=F64))
    measured = combine_rewards({"hit": torch.tensor([[7.0, 1.0]], dtype=F64)}, {"hit": 1.0})
    found = kl_in_reward.penalise_kl(algorithm, state, measured, drawn, reference)
    first, second = per_decision
    assert found.total.flatten().tolist() == pytest.approx([7.0 - 2 * (first + second), 1.0 - 2 * first])


def test_scores_of_components_are_added_by_weight_with_the_deviation_asked_for() -> None:
    """Of (0, 1) and (1, 0) the deviation is 1/sqrt(2), of the population 1/2: scores of -+1/sqrt(2), -+1, 1 and 3 times."""
    parts = {"up": torch.tensor([[0.0, 1.0]], dtype=F64), "down": torch.tensor([[1.0, 0.0]], dtype=F64)}
    rewards = combine_rewards(parts, {"up": 1.0, "down": 3.0})
    task = SimpleNamespace(prompt_weights=lambda batch: None)
    for std, first in (("sample", 2**-0.5), ("population", 1.0)):
        algorithm = algorithm_params(advantage={"method": "per_reward", "std": std, "eps": 0.0})
        found = advantages.compute_advantages(algorithm, task, None, rewards, None).values
        # -1 s + 3 s and its opposite, whitened over the batch: one deviation on either side.
        assert found.tolist() == [[pytest.approx(first), pytest.approx(-first)]]


def bundled(**values: Any) -> experience.Experience:
    names = ("context", "rollouts", "temperature", "outcomes", "rewards", "advantages")
    return experience.collect_experience(batch="prompts", replicated="replicated", **dict.fromkeys(names) | values)


def test_what_is_encoded_again_are_the_prompts_and_not_their_samples() -> None:
    given = bundled(resampling={"reward/retries": 2.0})
    assert (given.batch, given.prompts, given.resampling) == ("replicated", "prompts", {"reward/retries": 2.0})


def test_a_micro_batch_decodes_its_samples_from_features_of_its_own() -> None:
    class Decoding(TinyChoices):
        def encode(self, policy: Any, batch: Any) -> Any:
            return ("encoded", batch)

        def decode(self, policy: Any, context: Any, rollouts: Any, batch: Any) -> Any:
            return ("decoded", context, rollouts, batch)

    policy = torch.nn.Linear(1, 1)
    state = SimpleNamespace(policy=policy, precision="float32")
    whole = bundled(context="stale", rollouts="drawn", temperature=1.0)
    assert pieces.attach_micro_batch(Decoding(), state, whole, 0) is whole  # it has its graph from the rollout
    given = replace(whole, share=experience.StepShare(0, torch.ones(1), None))
    found = pieces.attach_micro_batch(Decoding(), state, given, 0)
    context = ("encoded", "prompts")
    assert found.context == context
    assert found.outcomes == ("decoded", context, "drawn", "replicated")
    assert pieces.attach_micro_batch(Decoding(), state, given, 1) is given


@pytest.mark.parametrize(
    ("level", "ratios"),
    [("decision", (0.2, 0.5)), ("joint", (0.7, 0.7)), ("sequence", (0.35, 0.35))],  # 0.2 and 0.5, their sum, their mean
)
def test_a_kl_with_ratios_has_those_of_the_level_of_the_policy_loss(level: str, ratios: tuple[float, float]) -> None:
    kind = "gspo" if level == "sequence" else "grpo"
    loss = {"kind": kind, "ratio_level": level, "reduction": "per_sequence"}
    algorithm = algorithm_params(losses={"policy": loss, "kl": {"estimator": "ratio_k3"}})
    is_valid = torch.tensor([[[True, True, False]]])
    scores = SimpleNamespace(logprobs=torch.tensor([[[-1.0, -2.0, 0.0]]], dtype=F64), kl=None)
    experience = SimpleNamespace(
        rollouts=Rollouts(torch.zeros(1, 1, 3), torch.tensor([[[-1.2, -2.5, 0.0]]], dtype=F64), is_valid),
        reference=ReferenceScores(torch.tensor([[[-1.5, -1.75, 0.0]]], dtype=F64)),
        share=None,
    )
    found = kl.kl_term(algorithm, SimpleNamespace(), scores, experience)["kl"]
    # exp(d) - 1 - d for d = -0.5 and 0.25, each times its ratio; the mean over the two decisions that were taken.
    each = (math.exp(-0.5) - 0.5, math.exp(0.25) - 1.25)
    assert float(found) == pytest.approx(sum(math.exp(r) * x for r, x in zip(ratios, each, strict=True)) / 2)


@pytest.mark.parametrize(("baseline", "clip"), [("group", None), ("group", 0.2), ("value", None), ("value", 0.2)])
def test_values_of_the_rollout_are_kept_where_a_baseline_or_a_clip_reads_them(baseline: str, clip: float | None) -> None:
    task, advantage = Asked(), {"method": "mean_only", "baseline": baseline}
    algorithm = algorithm_params(advantage=advantage, losses={"value": {"weight": 0.5, "clip": clip}}, update_epochs=2)
    state = make_state(task, None, algorithm, own_rates(training_params(), 0.1))
    batch = task.make_batch(None, np.arange(3))
    context = task.encode(state.policy, batch)
    drawn = task.sample(state.policy, context, 2, temperature=0.8, proposal="policy", generator=torch.Generator())
    assert (value.BASELINE in Parts.of(algorithm).chosen) == (baseline == "value" or clip is not None)
    found = value.predict_values(task, state, context, drawn, 0.8)
    assert torch.equal(found, (context.features @ state.policy.value).detach())


def test_the_context_of_micro_batches_is_that_of_the_batch_without_a_graph() -> None:
    task, policy = TinyChoices(), TinyChoices().build_policy(2)
    batch = task.make_batch(None, np.arange(5))
    found = in_micro_batches.InMicroBatches(task, 2).encode(policy, batch)
    assert not found.features.requires_grad
    assert torch.equal(found.features, task.encode(policy, batch).features)


FIRST_ONES = [[False] * 3, [True, False, False], [True, True, False]]


@pytest.mark.parametrize(
    ("credit", "kept", "credits"),
    [
        # The whole earns 10, the parts 1, 4 and 6.
        ("leave_one_out", [[False, True, True], [True, False, True], [True, True, False]], [9.0, 6.0, 4.0]),
        ("marginal", FIRST_ONES, [3.0, 2.0, 4.0]),
        ("marginal_to_go", FIRST_ONES, [9.0, 6.0, 4.0]),
    ],
)
def test_each_credit_asks_for_the_parts_that_it_compares(credit: Any, kept: Any, credits: Any) -> None:
    asked: list[Any] = []

    class Parts(TinyChoices):
        def subset_rewards(self, policy: Any, context: Any, rollouts: Any, batch: Any, *, kept: torch.Tensor) -> torch.Tensor:
            asked.append(kept.tolist())
            return torch.tensor([[[1.0, 4.0, 6.0]]], dtype=F64)

    algorithm = algorithm_params(advantage={"method": "mean_only", "credit": credit})
    task, policy = Parts(), TinyChoices().build_policy(0)
    batch = task.make_batch(None, np.arange(1))
    drawn = Rollouts(torch.ones(1, 1, 3, dtype=torch.long), torch.zeros(1, 1, 3), torch.ones(1, 1, 3, dtype=torch.bool))
    measured = combine_rewards({"hit": torch.tensor([[10.0]], dtype=F64)}, {"hit": 1.0})
    found = credit_samples(algorithm, task, policy, task.encode(policy, batch), drawn, batch, measured)
    assert asked == [kept]
    assert found.credits.values.flatten().tolist() == credits
