"""The contract that every task must keep, whatever its samples are. A new task is one more row of ``TASKS``.

What any task can be asked for is ``grpo_pipeline.testing.check_task``; the rest is what holds in a step, and of our models.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import tiny_attention as attention
import tiny_chemist as molecules
import tiny_talk as dialogue
import torch
from loss_terms import mixed_losses
from tiny_environments import ECHO, Ending
from tiny_folders import byte_folder
from torch import Tensor, nn

from grpo_pipeline.core.objective.advantages.baselines import Group
from grpo_pipeline.core.objective.algorithm import AlgorithmParams
from grpo_pipeline.core.params import TrainingParams
from grpo_pipeline.core.storage.snapshot import restore, snapshot
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.core.types import Rollouts, Scores
from grpo_pipeline.pipelines.reward_audit.samples import read_samples
from grpo_pipeline.pipelines.step.parts.supervised import supervised_term
from grpo_pipeline.pipelines.training.loader import make_training_batch
from grpo_pipeline.pipelines.training.loop import StepRunner, quiet_nodes
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.tasks.base import Proposal
from grpo_pipeline.testing import check_task

GROUP, TEMPERATURE = 4, 0.7


@dataclass(frozen=True)
class Case:
    """A task in miniature: what its module of tests/support makes, or what is given here."""

    kit: Any
    encoder: Callable[[Any], nn.Module] | None  # it may run once per batch; None where no network reads a prompt alone
    policy_groups: tuple[str, ...] = ()  # parameter groups that only the reward may teach
    decoder_groups: tuple[str, ...] = ()  # only the supervised loss
    shared_groups: tuple[str, ...] = ()  # both
    factors: int = 0  # distributions side by side in the full one, each of which sums to 1; 0 where scores hold no full one
    most_entropy: Callable[[Any], float] | None = None  # of a decision, in nats, where there is no full distribution
    rounding: float = 1e-4  # between log-probabilities of sampling time and of the update
    proposes_uniform: bool = False  # samples can be drawn without the policy; else that is refused
    task: Callable[[], Any] | None = None
    data: Callable[[], Any] | None = None
    algorithm: Callable[..., AlgorithmParams] | None = None
    training: Callable[..., TrainingParams] | None = None

    def __post_init__(self) -> None:
        """Take from the kit what is not given; build the task and its data once for all tests: neither is changed by them."""
        object.__setattr__(self, "task", cache(self.task or self.kit.make_task))
        object.__setattr__(self, "data", cache(self.data or self.kit.make_data))
        object.__setattr__(self, "algorithm", self.algorithm or self.kit.algorithm_params)
        object.__setattr__(self, "training", self.training or self.kit.training_params)

    def state(self, **changes: Any) -> TrainState:
        """Return a state whose policy is not uniform and whose reference is another policy."""
        state = build_state(self.algorithm(**changes), self.training(), 0, self.task(), self.data())
        attention.shake(state.policy, seed=1)
        return state

    def batch(self) -> Any:
        task, data = self.task(), self.data()
        return task.make_batch(data, task.rows(data, "train")[:4])


def with_advantage(*, baseline: str = "group", credit: str = "set", **changes: Any) -> AlgorithmParams:
    return attention.algorithm_params(**attention.merge({"advantage": {"baseline": baseline, "credit": credit}}, changes))


PROMPTED = {"clinical": {"dropout": 0.25}, "encoder": {"tuning": {"kind": "adapter", "rank": 2}}}


# A part of the reward that differs between any two replies, so that an untrained model's groups do not tie.
DISTINCT = {"own": {"distinct": {"function": "tiny_rewards:distinct", "weight": 1.0}}}
TRUNCATED = {"replies": {"top_k": 20, "top_p": 0.9, "tokens_per_batch": 30}, "mean": "per_sequence"}
# Nearly every molecule has another logP, and hot policies draw many: groups do not tie.
HOT = {"temperature": molecules.constant(3.0)}
WIDE = {"validity": {"weight": 1.0}, "logp": {"weight": 1.0, "low": 30.0, "high": 31.0, "width": 60.0}}
PROPERTIES = {"conditions": ["logp", "qed"]}
MEAN = {"entry_reduction": "mean", "steps_per_update": None, "steps_per_chunk": 3}
IMAGES = Case(
    attention,
    encoder=lambda policy: policy.sam.net.vision_encoder,
    policy_groups=("policy_head",),
    decoder_groups=("mask_decoder", "class_decoder"),
    **{"factors": 1, "rounding": 0.0, "proposes_uniform": True},
)
TALK = Case(
    dialogue,
    encoder=lambda policy: policy.model.encoder,
    shared_groups=("embeddings", "encoder", "decoder"),
    most_entropy=lambda policy: np.log(policy.choices),
    task=lambda: dialogue.make_task(reward=DISTINCT),
)
GRAPHS = Case(
    molecules,
    encoder=None,
    shared_groups=("embeddings", "layers", "heads"),
    most_entropy=lambda policy: 14 * np.log(max(policy.noise.classes)),  # four atoms, their charges, six pairs
    task=lambda: molecules.make_task(reward=WIDE),
    training=lambda **changes: molecules.training_params(**HOT | changes),
)


def conversing() -> Any:
    """Every second token ends a reply, and an environment answers it."""
    term = {"weight": 1.0, "environment": ECHO, "turns": 3}
    task = dialogue.make_task(replies={"max_tokens": 14, "top_k": 40}, reward=DISTINCT | {"environment": term})
    return replace(task, tokenizer=Ending())


CAPPED = {"kind": "truncate", "level": "decision", "cap": 2.0}


def drawn_by_the_library() -> Any:
    """Steps draw by transformers' ``generate``; every second token ends a reply."""
    network = {"kind": "folder", "path": byte_folder(), "tuning": {"kind": "lora", "rank": 2, "alpha": 4.0}}
    replies = {"top_k": 40, "generation": {"kind": "transformers"}}
    return replace(dialogue.make_task(language_model=network, replies=replies, reward=DISTINCT), tokenizer=Ending())


class Reading:
    """The calls in which a causal language model reads the prompts, for a test that hooks an encoder."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def register_forward_hook(self, hook: Callable[..., Any]) -> None:
        read = self.policy.encode

        def encode(*args: Any) -> Any:
            encoded = read(*args)
            hook(self.policy, args, (encoded.start,))
            return encoded

        self.policy.encode = encode


TASKS = {
    "attention": IMAGES,
    "attention_prompted": replace(
        IMAGES,
        task=lambda: attention.make_task(attention.make_clinical_examples(), **PROMPTED),
        data=lambda: attention.make_data(attention.make_clinical_examples()),
        decoder_groups=("mask_decoder", "class_decoder", "clinical"),
    ),
    "attention_value": replace(
        IMAGES,
        task=lambda: attention.make_task(class_decoder={"kind": "global"}, policy={"likelihood": "independent"}),
        algorithm=partial(with_advantage, baseline="value"),
    ),
    "attention_statistics": replace(
        IMAGES,
        task=lambda: attention.make_task(
            class_decoder={"kind": "statistics", "region": True, "folds": 3},
            policy={"reads": {"kind": "statistics"}, "prior": {"kind": "dark_blobs"}},
            supervised={"ridge": {"weight": 0.01}, "location": {"weight": 0.5}},
        ),
        policy_groups=(),
        shared_groups=("policy_head",),  # outlines teach it too
    ),
    "attention_stop": replace(
        IMAGES,
        task=lambda: attention.make_task(
            policy={"stop": {"min_points": 1}, "reads": {"kind": "cell"}}, reward={"points": {"weight": 0.1}}
        ),
        algorithm=partial(with_advantage, credit="leave_one_out"),
        factors=3,
    ),
    "dialogue": TALK,
    "dialogue_truncated": replace(TALK, task=lambda: dialogue.make_task(reward=DISTINCT, **TRUNCATED)),
    "dialogue_with_an_environment": replace(
        TALK,
        task=conversing,
        algorithm=lambda **changes: dialogue.algorithm_params(**attention.merge({"advantage": {"credit": "to_go"}}, changes)),
    ),
    "dialogue_with_another_engine": replace(
        TALK,
        task=drawn_by_the_library,
        data=lambda: dialogue.make_data(drawn_by_the_library()),
        encoder=Reading,
        algorithm=lambda **changes: dialogue.algorithm_params(**attention.merge({"correction": CAPPED}, changes)),
        shared_groups=("decoder",),
    ),
    "molecules": GRAPHS,
    "molecules_eager": replace(
        GRAPHS,
        task=lambda: molecules.make_task(arm="eager", reward=WIDE),
        algorithm=lambda **changes: molecules.algorithm_params("eager", **changes | {"update_epochs": 1}),
    ),
    "molecules_mean": replace(
        GRAPHS,
        task=lambda: molecules.make_task(reward=WIDE, trajectory=MEAN, prompt=PROPERTIES),
        data=lambda: molecules.make_data(**PROPERTIES),
        most_entropy=lambda policy: np.log(max(policy.noise.classes)),
    ),
}


@pytest.fixture(params=TASKS.values(), ids=TASKS.keys())
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


def draw(case: Case, policy: Any, *, seed: int = 0, proposal: Proposal = "policy") -> Rollouts:
    task = case.task()
    context = task.encode(policy, case.batch())
    generator = torch.Generator().manual_seed(seed)
    return task.sample(policy, context, GROUP, temperature=TEMPERATURE, proposal=proposal, generator=generator)


def score(case: Case, policy: Any, rollouts: Rollouts, batch: Any = None) -> Scores:
    task = case.task()
    return task.score(policy, task.encode(policy, case.batch() if batch is None else batch), rollouts, temperature=TEMPERATURE)


def group_gradients(case: Case, state: TrainState, loss: Tensor) -> dict[str, float]:
    """Return the norm of a loss's gradient on each parameter group."""
    groups = case.task().parameter_groups(state.policy)
    norms = {}
    for name, parameters in groups.items():
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        norms[name] = sum(float(g.square().sum()) for g in gradients if g is not None) ** 0.5
    return norms


@pytest.mark.parametrize(("refresh", "encodings", "group"), [("once", 1, 5), ("every_epoch", 2, 2)])
def test_encodes_once_per_batch_whatever_the_group(case: Case, refresh: str, encodings: int, group: int):
    state, calls = case.state(), []
    if case.encoder is None:
        for module in state.policy.modules():
            module.register_forward_pre_hook(lambda *_: pytest.fail("a network ran"))
        case.task().encode(state.policy, case.batch())
        return
    case.encoder(state.policy).register_forward_hook(lambda _, inputs, output: calls.append(len(output[0])))
    training = case.training(encoder_refresh=refresh, group_size=group)
    StepRunner(case.task(), case.algorithm(update_epochs=2), training)(state, case.batch())
    assert len(calls) == encodings


def test_scores_and_entropies_are_those_of_the_sampler_prompt_by_prompt(case: Case):
    task, data, policy = case.task(), case.data(), case.state().policy
    rollouts = draw(case, policy.train())
    training, scores = score(case, policy, rollouts).logprobs, score(case, policy.eval(), rollouts)
    assert torch.equal(training, scores.logprobs)
    torch.testing.assert_close(scores.logprobs.detach(), rollouts.logprobs, atol=max(case.rounding, 1e-6), rtol=0)
    assert float(rollouts.logprobs.std()) > 1e-3  # the policy is not uniform: the comparison says something
    batch = task.make_batch(data, task.rows(data, "train")[2:3])
    alone = replace(rollouts, **{name: value[2:3] for name, value in vars(rollouts).items() if value is not None})
    logprobs = score(case, policy, alone, batch).logprobs.detach()
    torch.testing.assert_close(logprobs[0], scores.logprobs.detach()[2], atol=1e-5, rtol=0)
    if not case.factors:
        assert scores.log_probs_full is None
        assert bool(((scores.entropy > 0) & (scores.entropy < case.most_entropy(policy))).all())
        return
    log_p = scores.log_probs_full.detach()
    p = log_p.exp()
    torch.testing.assert_close(p.sum(1), torch.full((len(p),), float(case.factors)), atol=1e-5, rtol=0)
    expected = torch.stack([-(row[row > 0] * row[row > 0].log()).sum() for row in p])
    torch.testing.assert_close(scores.entropy.detach(), expected, atol=1e-5, rtol=0)


def test_micro_batches_give_the_step_of_the_whole_batch(case: Case):
    """Of three and one prompt of unlike sizes, with every term of the loss; plain steps: Adam divides rounding by itself."""
    task, data, terms = case.task(), case.data(), {"losses": {"supervised": {"weight": 0.5}, "kl": {"weight": 0.7}}}
    algorithm, rows, found = case.algorithm(update_epochs=1, **terms), task.rows(data, "train")[[0, 4, 5, 6]], []
    for size in (None, 3):
        state = case.state(**terms)
        state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=0.1))
        batch = task.make_batch(data, rows, generator=torch.Generator().manual_seed(0))
        runner = StepRunner(task, algorithm, case.training(micro_batch_size=size, gradient_report_every_steps=1000))
        state, metrics = runner(state, batch)
        found.append((attention.weights(state.policy), metrics))
    (whole, expected), (weights, metrics) = found
    for name in ("reward/mean", "supervised/loss", "kl/reference", "policy/entropy"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-4), name
    for name, weight in weights.items():
        torch.testing.assert_close(weight, whole[name], atol=5e-6, rtol=1e-4, msg=name)


def test_experience_is_detached_teaches_what_it_may_in_any_order_and_is_replayed(case: Case):
    task, algorithm, state = case.task(), case.algorithm(), case.state()
    experience = attention.gather(algorithm, case.training(), task, state, case.batch())
    rewards, drawn = experience.rewards, experience.rollouts
    tensors = [*rewards.components.values(), rewards.total, experience.advantages.values, drawn.logprobs]
    assert not any(t.requires_grad for t in tensors)
    assert all(part.shape == (4, GROUP) for part in rewards.components.values())
    assert float(rewards.total.std(1).max()) > 0  # samples of one prompt earn different rewards; a group may tie

    # Every parameter is in one group, and taught by the terms that may teach it.
    trainable = {id(p): name for name, p in state.policy.named_parameters() if p.requires_grad}
    groups = task.parameter_groups(state.policy)
    assert sorted(trainable.get(id(p), "frozen") for group in groups.values() for p in group) == sorted(trainable.values())
    terms = mixed_losses(algorithm, case.training(), task, state, experience, 0)[0].terms
    whole = torch.stack([*terms.values()]).sum()
    by_all, by_supervised, by_policy = (
        group_gradients(case, state, loss) for loss in (whole, terms["supervised"], terms["policy"])
    )
    assert [name for name, norm in by_all.items() if norm == 0] == []
    assert {name for name, norm in by_supervised.items() if norm > 0} & {*case.policy_groups} == set()
    assert {name for name, norm in by_policy.items() if norm > 0} & {*case.decoder_groups} == set()
    assert all(by_policy[name] > 0 for name in (*case.policy_groups, *case.shared_groups))
    assert all(by_supervised[name] > 0 for name in (*case.decoder_groups, *case.shared_groups))
    assert {*case.policy_groups, *case.decoder_groups, *case.shared_groups} != set()

    # The order of a group's samples does not matter.
    order = torch.tensor([2, 0, 3, 1])
    grouped = {name: value for name, value in vars(drawn).items() if value is not None and value.shape[:2] == (4, GROUP)}
    rollouts = replace(drawn, **{name: value[:, order] for name, value in grouped.items()})
    permuted = attention.judge(task, algorithm, state, experience.batch, experience.context, rollouts, experience.temperature)
    actions, logprobs, before = drawn.actions.clone(), drawn.logprobs.clone(), score(case, state.policy, drawn).logprobs.detach()
    attention.shake(state.policy, seed=5, scale=0.02)  # away from the policy that drew, where every ratio is 1
    found = []
    for one in (experience, permuted):
        terms = mixed_losses(algorithm, case.training(), task, state, one, 1)[0].terms
        found.append({**terms, **supervised_term(task, state, one, 0)})
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)

    # Another policy scores the stored actions otherwise, and leaves them as they are.
    attention.shake(state.policy, seed=5)
    after = score(case, state.policy, drawn).logprobs.detach()
    assert torch.equal(drawn.actions, actions)
    assert torch.equal(drawn.logprobs, logprobs)
    assert (after - before).abs().max() > 1e-2


def test_seeds_decide_weights_and_samples_and_no_policy_decides_uniform_ones(case: Case):
    before, untrained = torch.get_rng_state(), case.task().build_policy(3)
    a, b, c = (attention.weights(policy) for policy in (untrained, *map(case.task().build_policy, (3, 4))))
    assert attention.differing(a, b) == []
    assert attention.differing(a, c) != []
    policies = [case.state().policy for _ in range(2)]
    a, b, c = (draw(case, policy, seed=seed) for policy, seed in zip((*policies, policies[0]), (0, 0, 1), strict=True))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(a.actions, b.actions)
    assert torch.equal(a.logprobs, b.logprobs)
    assert not torch.equal(a.logprobs, c.logprobs)
    if not case.proposes_uniform:
        with pytest.raises(ValueError, match="proposal must be policy or none"):
            draw(case, policies[0], proposal="uniform")
        return
    one, other = (draw(case, policy, proposal="uniform") for policy in (policies[0], untrained))
    assert torch.equal(one.actions, other.actions)
    assert torch.equal(one.logprobs, other.logprobs)
    assert not torch.equal(one.actions, a.actions)


def test_an_audit_scores_every_policy_of_its_plan_on_the_rows_it_is_given(case: Case):
    task, data, policy = case.task(), case.data(), case.state().policy
    plan, rows = task.audit_plan, task.rows(data, "train")[:3]
    before = torch.get_rng_state()
    found = task.audit(policy, data, rows, seed=0, n_samples=GROUP)
    assert torch.equal(torch.get_rng_state(), before)
    samples = read_samples(found, plan)
    assert {"start", "trivial", "ceiling"} == set(plan.policies.values())
    assert {one.reward.shape for one in samples.policies.values()} <= {(3, GROUP), (3, 1)}
    assert samples.policies[plan.start].reward.shape == (3, GROUP)
    for name, one in samples.policies.items():
        total = sum(plan.weights[part] * values for part, values in one.components.items() if plan.weights[part])
        np.testing.assert_allclose(one.reward, total, atol=1e-6, err_msg=name)
        assert {metric for metric, values in one.metrics.items() if np.isfinite(values).any()}, name
    again, other = (read_samples(task.audit(policy, data, rows, seed=seed, n_samples=GROUP), plan) for seed in (0, 1))
    np.testing.assert_array_equal(again.policies[plan.start].reward, samples.policies[plan.start].reward)
    assert not np.array_equal(other.policies[plan.start].reward, samples.policies[plan.start].reward)


def test_a_resumed_run_has_the_bits_of_an_unbroken_one_and_first_ratios_of_one(case: Case):
    """Broken off after its first step; the one that goes on was built from another seed."""
    task, data, algorithm, training = case.task(), case.data(), case.algorithm(), case.training()
    runner, rows, ratios = StepRunner(task, algorithm, training), task.rows(data, "train")[:4], []

    def step(state: TrainState) -> TrainState:
        with quiet_nodes():
            state, metrics = runner(state, make_training_batch(task, data, rows, seed=0, step=state.step))
        ratios.append(metrics["policy/ratio_first"])
        assert metrics["policy/ratio_max"] > 1.0 or algorithm.update_epochs == 1  # the later update epochs have moved on
        return state

    first = step(case.state())
    saved = snapshot(first, progress={}, parameters={"a": 1})
    unbroken = step(first)
    resumed = step(restore(build_state(algorithm, training, 5, task, data), saved, parameters={"a": 1}))
    assert attention.differing(attention.weights(resumed.policy), attention.weights(unbroken.policy)) == []
    assert ratios == pytest.approx([1.0, 1.0, 1.0], abs=case.rounding, rel=0)


def test_an_evaluation_draws_by_its_seed(case: Case):
    task, data, policy = case.task(), case.data(), case.state().policy
    first, other = (task.evaluate(policy, data, task.rows(data, "test"), seed=seed, n_samples=2) for seed in (0, 1))
    assert not other["reward"].equals(first["reward"])


def test_a_task_keeps_every_promise_that_a_stranger_is_asked_for(case: Case):
    check_task(case.task(), case.data())


def test_a_policy_is_built_without_a_seed_for_every_cuda_device(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.manual_seed`` seeds them, too, and what is put back afterwards is the CPU's stream alone."""
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    torch.manual_seed(3)
    case.task().build_policy(5)
    assert seeded == [3]


def test_molecules_that_go_on_from_a_warm_start_and_score_few_prompts_keep_them_too() -> None:
    """Policies hold the limits of the noise: loading weights into one must not write into those of another."""
    data, fresh = molecules.make_data(), molecules.make_task(reward=WIDE, sampling={"prompts": 2})
    assert len(fresh.rows(data, "test")) > 2
    check_task(replace(fresh, start=ModelWeights(fresh.build_policy(5).state_dict(), {})), data)


@pytest.mark.parametrize(
    ("name", "credit", "method"),
    [("dialogue", "marginal", "subset_rewards"), ("molecules", "leave_one_out", "subset_rewards"),
     ("molecules", "to_go", "turn_rewards"), ("attention", "to_go", "turn_rewards")],
)  # fmt: skip
def test_credit_per_decision_is_refused_with_what_to_write(name: str, credit: Any, method: str) -> None:
    task = TASKS[name].task()
    asked = TASKS[name].algorithm("grpo").model_copy(update={"advantage": Group(credit=credit)})
    rule = rf"advantage.credit must be set for the task {name}, got {credit}; .*write {type(task).__name__}.{method}"
    with pytest.raises(ValueError, match=rule):
        task.check_algorithm(asked)
    control = asked.losses.model_copy(update={"policy": None})  # has no policy to credit
    task.check_algorithm(asked.model_copy(update={"losses": control}))
