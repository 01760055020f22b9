"""The molecule task in the loop: exact KL, micro-batches, estimators, what is refused, what fails."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_attention
import tiny_chemist as tiny
import torch
from torch import Tensor

from grpo_pipeline.core.rng import Stream, step_generator
from grpo_pipeline.core.storage.weights import weights_of
from grpo_pipeline.core.training.micro_batches import join_prompts
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.step import collect, update
from grpo_pipeline.pipelines.step.collect import Experience
from grpo_pipeline.pipelines.training.loop import StepRunner
from grpo_pipeline.pipelines.training.nodes import build_state
from grpo_pipeline.rewards.pool import RewardFailedError
from grpo_pipeline.tasks.molecules import evaluation
from grpo_pipeline.tasks.molecules.audit import training_copies
from grpo_pipeline.tasks.molecules.build import check_arms, start_from
from grpo_pipeline.tasks.molecules.denoiser.denoiser import GraphPolicy
from grpo_pipeline.tasks.molecules.diffusion import trajectories
from grpo_pipeline.tasks.molecules.graphs.encoding import decode
from grpo_pipeline.tasks.molecules.graphs.graphs import GraphPrompts
from grpo_pipeline.tasks.molecules.params import MoleculeRewardParams
from grpo_pipeline.tasks.molecules.task import MoleculeTask

ROWS = np.arange(4)
KL = {"kl_weight": tiny.constant(1.0)}
BROKEN = {"own": {"broken": {"function": "tiny_chemistry:raises", "weight": 1.0, "options": {}}}}


def start(task: MoleculeTask, **algorithm: Any) -> TrainState:
    """Return a state whose policy is not its reference."""
    state = build_state(tiny.algorithm_params(**algorithm), tiny.training_params(), 0, task, tiny.make_data())
    tiny_attention.shake(state.policy, seed=1, scale=0.1)
    return state


def collected(task: MoleculeTask, state: TrainState, **algorithm: Any) -> Experience:
    params, training, batch = tiny.algorithm_params(**algorithm), tiny.training_params(), task.make_batch(tiny.make_data(), ROWS)
    context, replicated = collect.encode_batch(task, state, batch), collect.replicate_batch(training, task, batch)
    rollouts, temperature = collect.sample_rollouts(params, training, task, state, context)
    return tiny_attention.judge(task, params, state, replicated, context, rollouts, temperature)


def naive_kl(policy: GraphPolicy, reference: GraphPolicy, rollouts: Any, p: int, g: int, decision: int) -> float:
    """Add up p (log p - log q) over the classes of every entry of one graph, in Python."""
    t = int(rollouts.actions[p, g, decision])
    size = int(rollouts.sizes[p])
    prompt = GraphPrompts(rollouts.sizes[p : p + 1], rollouts.conditions[p : p + 1], rollouts.atoms.shape[-1])
    noisy = tiny.components(rollouts, p, g, t)
    both = [model.step_log_probs(noisy, prompt, torch.tensor([t])) for model in (policy, reference)]
    total = 0.0
    for name in ("atoms", "charges", "bonds"):
        log_p, log_q = (getattr(one, name)[0].double() for one in both)
        pairs = [(i, j) for i in range(prompt.nodes) for j in range(i + 1, prompt.nodes)]
        inside = range(size) if name != "bonds" else [n for n, (i, j) in enumerate(pairs) if j < size]
        for entry in inside:
            total += sum(float(a.exp() * (a - b)) for a, b in zip(log_p[entry], log_q[entry], strict=True))
    return total


@pytest.mark.parametrize("chunk", [None, 2])
def test_the_exact_kl_of_an_update_is_that_of_a_loop_over_entries(chunk: int | None) -> None:
    task = tiny.make_task(trajectory={"entry_reduction": "sum", "steps_per_chunk": chunk})
    state = start(task, **KL)
    experience = collected(task, state, **KL)
    assert experience.reference.logprobs is None  # the reference is asked while the update scores, and not before
    terms, _ = update.policy_terms(tiny.algorithm_params(**KL), tiny.training_params(), task, state, experience, 0)
    rollouts = experience.rollouts
    shape = rollouts.actions.shape
    with torch.no_grad():
        expected = np.mean([naive_kl(state.policy, state.reference, rollouts, *index) for index in np.ndindex(*shape)])
    assert expected > 1e-3
    assert float(terms["kl"].detach()) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("trajectory", [{}, {"entry_reduction": "sum", "steps_per_update": None, "steps_per_chunk": 3}])
@pytest.mark.parametrize("arm", ["grpo", "eager"])
def test_micro_batches_give_the_step_of_the_whole_batch(arm: str, trajectory: dict[str, Any]) -> None:
    estimator = "eager" if arm == "eager" else "step"
    task = tiny.make_task(trajectory={**trajectory, "estimator": estimator})
    algorithm = tiny.algorithm_params(arm, update_epochs=1, supervised_weight=1.0, **KL)
    found = []
    for size in (None, 1, 3):
        training = tiny.training_params(micro_batch_size=size, gradient_report_every_steps=1000)
        state = build_state(algorithm, training, 0, task, tiny.make_data())
        tiny_attention.shake(state.policy, seed=1, scale=0.1)
        # Plain steps: Adam would divide the rounding of small gradients by itself.
        state = replace(state, optimizer=torch.optim.SGD(state.policy.parameters(), lr=0.1))
        batch = task.make_batch(tiny.make_data(), np.array([0, 4, 5, 6]), generator=torch.Generator().manual_seed(0))
        state, metrics = StepRunner(task, algorithm, training)(state, batch)
        found.append((tiny_attention.weights(state.policy), metrics))
    for weights, metrics in found[1:]:
        for name in ("reward/mean", "supervised/loss", "kl/reference", "policy/entropy"):
            assert metrics[name] == pytest.approx(found[0][1][name], rel=1e-4), name
        for name, weight in weights.items():
            torch.testing.assert_close(weight, found[0][0][name], atol=2e-6, rtol=1e-4, msg=name)


def test_the_supervised_loss_is_a_mean_over_entries_of_the_whole_batch() -> None:
    """Two micro-batches of unlike sizes, with their shares, add up to the batch; without shares they do not."""
    task = tiny.make_task()
    policy = task.build_policy(0)
    whole = task.make_batch(tiny.make_data(), np.array([0, 12]))  # 2 and 4 atoms
    counts = task.supervised_counts(whole)
    torch.testing.assert_close(counts, torch.tensor([6.0, 6.0, 7.0], dtype=torch.float64))  # 2 + 4 atoms, 1 + 6 pairs
    parts = [tiny.take(whole, p) for p in range(2)]
    shares = torch.stack([task.supervised_counts(part) for part in parts]) / counts
    losses = [task.supervised_loss(policy, part.prompts, part, None, share) for part, share in zip(parts, shares, strict=True)]
    together = task.supervised_loss(policy, whole.prompts, whole, None)
    torch.testing.assert_close(torch.stack(losses).sum(), together, rtol=1e-5, atol=0)
    alone = torch.stack([task.supervised_loss(policy, part.prompts, part, None) for part in parts]).mean()
    assert abs(float(alone - together)) > 1e-3


def test_the_supervised_loss_of_groups_of_similar_size_is_that_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny.make_task()
    policy = task.build_policy(0)
    batch = task.make_batch(tiny.make_data(), np.arange(13))
    assert len(set(batch.prompts.sizes.tolist())) > 1
    losses = {}
    for cut_cost in (0, 10**9):
        monkeypatch.setitem(trajectories.CUT_COSTS, "cpu", cut_cost)
        loss = task.supervised_loss(policy, batch.prompts, batch, None)
        losses[cut_cost] = (loss.detach(), *torch.autograd.grad(loss, list(policy.parameters())))
    for cut, whole in zip(losses[0], losses[10**9], strict=True):
        torch.testing.assert_close(cut, whole, rtol=1e-4, atol=1e-6)


def test_the_eager_arm_scores_the_molecule_that_came_out() -> None:
    task = tiny.make_task(arm="eager", trajectory={"entry_reduction": "sum"})
    policy = start(task, arm="eager").policy
    prompts = task.make_batch(tiny.make_data(), ROWS).prompts
    drawn = task.sample(policy, prompts, 3, temperature=0.7, proposal="policy", generator=torch.Generator().manual_seed(3))
    t = int(drawn.actions[1, 2, 0])
    one = GraphPrompts(drawn.sizes[1:2], drawn.conditions[1:2], drawn.atoms.shape[-1])
    with torch.no_grad():
        logits = policy.x0_logits(tiny.components(drawn, 1, 2, t), one, torch.tensor([t]), temperature=0.7)
    size = int(drawn.sizes[1])
    expected = sum(float(logits.atoms[0, i].log_softmax(-1)[drawn.atoms[1, 2, 0, i].long()]) for i in range(size)) + float(
        logits.bonds[0, 0].log_softmax(-1)[drawn.bonds[1, 2, 0, 0].long()]
    )
    assert size == 2  # one pair of atoms; the vocabulary has one charge alone
    assert float(drawn.logprobs[1, 2, 0]) == pytest.approx(expected, rel=1e-4)


def test_a_prompt_tells_the_properties_of_its_molecule_in_spreads_of_the_training_split() -> None:
    data = tiny.make_data(conditions=["logp"])
    train = data.examples.rows("train")
    logp = data.examples.table["logp"].to_numpy()
    expected = (logp - logp[train].mean()) / logp[train].std()
    np.testing.assert_allclose(data.conditions[:, 0].numpy(), expected, rtol=1e-5)
    task = tiny.make_task(prompt={"conditions": ["logp"]})
    np.testing.assert_allclose(task.make_batch(data, np.array([3, 1])).prompts.conditions[:, 0], expected[[3, 1]], rtol=1e-5)
    batch = task.make_batch(data, np.array([3]))
    assert batch.targets == ((f"{logp[3]:.6g}",),)
    policy = start(task).policy
    drawn = [
        task.draw(policy, replace(batch.prompts, conditions=batch.prompts.conditions + move), 64, temperature=1.0, generator=g)
        for move, g in ((0.0, torch.Generator().manual_seed(0)), (3.0, torch.Generator().manual_seed(0)))
    ]
    assert not torch.equal(drawn[0].logprobs, drawn[1].logprobs)


def test_a_training_batch_draws_its_noise_and_another_one_has_always_the_same() -> None:
    task, data = tiny.make_task(), tiny.make_data()
    fixed = [task.make_batch(data, ROWS) for _ in range(2)]
    assert torch.equal(fixed[0].times, fixed[1].times)
    assert torch.equal(fixed[0].noisy.bonds, fixed[1].noisy.bonds)
    times: list[Tensor] = [task.make_batch(data, ROWS, generator=torch.Generator().manual_seed(s)).times for s in range(8)]
    assert {int(t) for t in torch.cat(times)} == set(range(1, 9))


def test_molecules_larger_than_the_room_are_refused() -> None:
    with pytest.raises(ValueError, match=r"molecules.prompt.max_atoms must be at least .* 4 \('CCCO'\), got 3; raise it"):
        tiny.make_data(max_atoms=3)
    task = tiny.make_task(prompt={"max_atoms": 6})
    batch = task.make_batch(tiny.make_data(max_atoms=6), ROWS)
    assert batch.clean.atoms.shape == (4, 6)
    drawn = task.draw(task.build_policy(0), batch.prompts, 2, temperature=1.0, generator=torch.Generator().manual_seed(0))
    assert drawn.bonds.shape[-1] == 15
    assert not bool(drawn.atoms[..., 4:].any())


@pytest.mark.parametrize(
    ("changes", "trajectory", "words"),
    [
        ({"proposal": "uniform", "name": "supervised"}, {}, "proposal must be policy or none"),
        ({"replay": {"capacity": 4, "max_age_steps": 2, "share": 0.5, "importance_cap": 2.0}}, {}, "replay must be null"),
        ({"advantage": {"baseline": "value"}, "value_weight": 1.0}, {}, "value_weight must be 0"),
        ({"kl_estimator": "k3"}, {"entry_reduction": "mean"}, "kl_estimator must be exact with entry_reduction = mean"),
        ({"kl_estimator": "k3"}, {"entry_reduction": "sum", "estimator": "eager"}, "kl_estimator must be exact"),
        (
            {"kl_estimator": "k1", "kl_placement": "reward"},
            {"entry_reduction": "sum"},
            "steps_per_update must be null with kl_placement = reward",
        ),
        ({"update_epochs": 2}, {"estimator": "eager"}, "update_epochs must be 1 with estimator = eager, got 2"),
    ],
)
def test_arms_that_ask_for_what_is_not_there_are_refused(changes: dict[str, Any], trajectory: dict[str, Any], words: str) -> None:
    if changes.get("name") == "supervised":
        algorithm = tiny.algorithm_params("supervised", proposal="uniform")
    else:
        algorithm = tiny.algorithm_params(**changes)
    task = tiny.make_task()
    with pytest.raises(ValueError, match=words):
        check_arms(task, [(algorithm, tiny.trajectory_params(**trajectory))])
    with pytest.raises(ValueError, match=words):
        build_state(algorithm, tiny.training_params(), 0, replace(task, trajectory=tiny.trajectory_params(**trajectory)), None)


def test_a_sampled_kl_is_allowed_where_it_is_one_of_whole_steps() -> None:
    task = tiny.make_task(trajectory={"entry_reduction": "sum"})
    state = start(task, kl_estimator="k3", **KL)
    _, metrics = StepRunner(task, tiny.algorithm_params(kl_estimator="k3", **KL), tiny.training_params())(
        state, task.make_batch(tiny.make_data(), ROWS)
    )
    assert metrics["kl/reference"] > 0


def test_more_steps_than_a_trajectory_has_are_refused_before_anything_is_trained() -> None:
    with pytest.raises(ValueError, match="steps_per_update must be at most the 8 steps of the noise, got 9"):
        check_arms(tiny.make_task(), [(tiny.algorithm_params("eager"), tiny.trajectory_params("eager", steps_per_update=9))])


@pytest.mark.parametrize("rule", ["exclude", "stop"])
def test_a_reward_that_always_fails_stops_the_run(rule: str) -> None:
    with pytest.raises(RewardFailedError, match="reward 'broken' must score texts of the training data, got no value for any of"):
        tiny.make_task(rewards=BROKEN | {"failure": {"rule": rule}})
    sound = tiny.make_task()  # one that fails later passes the trial
    rewards = MoleculeRewardParams.model_validate(sound.rewards.model_dump() | BROKEN | {"failure": {"rule": rule}})
    task = replace(sound, rewards=rewards)
    batch = task.make_batch(tiny.make_data(), ROWS)
    generator = torch.Generator().manual_seed(0)
    drawn = task.draw(task.build_policy(0), batch.prompts, 16, temperature=1.0, generator=generator)
    outcomes = task.decode(task.build_policy(0), batch.prompts, drawn, batch)
    assert any(molecule.is_valid for group in outcomes.molecules for molecule in group)
    with pytest.raises(RewardFailedError, match="reward 'broken' must score"):
        task.reward(batch, drawn, outcomes)


def test_uniqueness_in_the_batch_does_not_end_where_a_micro_batch_does() -> None:
    """Every prompt's samples are there a second time, in another micro-batch."""
    task = tiny.make_task()
    policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(), ROWS[:2])
    drawn = task.draw(policy, batch.prompts, 16, temperature=1.0, generator=torch.Generator().manual_seed(0))
    twice, batches = join_prompts([drawn, drawn]), join_prompts([batch, batch])
    whole = task.decode(policy, batches.prompts, twice, batches)
    apart = join_prompts([task.decode(policy, batch.prompts, drawn, batch) for _ in range(2)])
    assert any(molecule.is_valid for group in whole.molecules for molecule in group)
    found, wanted = (task.reward(batches, twice, outcomes)[0]["batch_uniqueness"] for outcomes in (apart, whole))
    assert torch.equal(found, wanted)
    assert not wanted.any()


def test_an_arm_without_samples_has_no_reward() -> None:
    task, algorithm, training = tiny.make_task(), tiny.algorithm_params("supervised"), tiny.training_params()
    state = build_state(algorithm, training, 0, task, tiny.make_data())
    batch = task.replicate(task.make_batch(tiny.make_data(), ROWS), 4)
    rollouts, temperature = collect.sample_rollouts(algorithm, training, task, state, batch.prompts)
    assert rollouts.actions.shape == (4, 4, 0)
    experience = tiny_attention.judge(task, algorithm, state, batch, batch.prompts, rollouts, temperature)
    assert bool(experience.rewards.total.isnan().all())
    table = task.tabulate(tiny.make_data(), batch, rollouts)
    assert len(table) == 16
    assert bool(table["is_valid"].isna().all())
    assert set(table["smiles"]) == {""}


def test_every_policy_of_a_started_task_begins_with_the_start() -> None:
    task = tiny.make_task()
    trained = start(task).policy
    started = replace(start_from(task, weights_of(trained, {})), trajectory=tiny.trajectory_params("eager"))
    for seed in (0, 1):
        assert tiny_attention.differing(tiny_attention.weights(started.build_policy(seed)), tiny_attention.weights(trained)) == []
    assert started.fingerprint(tiny.make_data())["start"] != task.fingerprint(tiny.make_data())["start"]
    assert started.pool is task.pool


def test_copies_of_the_audit_are_training_molecules_of_the_nearest_size() -> None:
    examples = tiny.make_data().examples
    sizes = np.array([2, 3, 4, 4])  # the training molecules have 2 or 3 atoms
    copied = training_copies(sizes, examples, 4, generator=np.random.default_rng(0))
    assert copied.sizes.tolist() == [2, 3, 3, 3]
    assert {molecule.smiles for molecule in decode(copied, examples.vocabulary)} <= examples.known("train")


def test_validation_counts_different_molecules_among_the_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data, smiles = tiny.make_task(), tiny.make_data(), []
    draw = evaluation.draw_graphs

    def watched(*args: Any, **named: Any) -> evaluation.SampledGraphs:
        drawn = draw(*args, **named)
        smiles.extend(molecule.smiles for group in drawn.molecules for molecule in group)
        return drawn

    monkeypatch.setattr(evaluation, "draw_graphs", watched)
    found = task.validate(task.build_policy(0), data, task.rows(data, "val"), seed=0, n_samples=16)
    valid = [text for text in smiles if text]
    assert 0 < len(set(valid)) < len(valid) < len(smiles)
    assert found["molecule/validity"] == len(valid) / len(smiles)
    assert found["molecule/uniqueness"] == len(set(valid)) / len(valid)
    assert found["molecule/novelty"] == len(set(valid) - data.examples.known("train")) / len(set(valid))


def test_graphs_of_an_evaluation_are_drawn_at_its_temperature_with_noise_of_their_batch() -> None:
    task = tiny.make_task()
    task = replace(task, sampling=task.sampling.model_copy(update={"temperature": 3.0}))
    policy, batch = start(task).policy, task.make_batch(tiny.make_data(), ROWS)
    found = []
    for number in (0, 1):
        drawn = evaluation.draw_graphs(task, policy, batch, 4, seed=2, number=number, stream=Stream.EVALUATION)
        generator = step_generator(2, number, stream=Stream.EVALUATION)
        expected = task.sample(policy, batch.prompts, 4, temperature=3.0, proposal="policy", generator=generator)
        assert torch.equal(drawn.graphs.atoms, trajectories.graphs_at(expected, 0).atoms)
        found.append(drawn.graphs.atoms)
    assert not torch.equal(*found)


LETTERS = {
    "own": {"letters": {"function": "tiny_chemistry:refuses_nitrogen", "weight": 2.0, "options": {}}},
    "failure": {"rule": "exclude"},
}


def letters_of(smiles: list[str]) -> np.ndarray:
    """Return what the reward of LETTERS is for valid molecules."""
    return np.array([np.nan if "N" in text else sum(map(str.isalpha, text)) for text in smiles], dtype=float)


def test_rows_of_an_audit_hold_what_their_own_molecule_earned() -> None:
    task = tiny.make_task(rewards=LETTERS)
    rows = task.audit(start(task).policy, tiny.make_data(), np.array([0, 4, 12, 6]), seed=0, n_samples=6)
    valid = rows[rows["is_valid"] == 1]
    np.testing.assert_array_equal(valid["reward_letters"], letters_of(list(valid["smiles"])))
    assert valid.groupby("policy")["reward_letters"].nunique().max() > 1


def test_rows_of_an_evaluation_hold_what_their_own_molecule_earned_and_was_left_without() -> None:
    task = tiny.make_task(rewards=LETTERS)
    rows_of = [0, 4, 12]  # 2, 3 and 4 atoms
    policy, batch = start(task).policy, task.make_batch(tiny.make_data(), np.array(rows_of))
    sampled = evaluation.draw_graphs(task, policy, batch, 16, seed=2, number=0, stream=Stream.EVALUATION)
    rows = evaluation.sample_rows(task, batch, sampled)
    smiles = [molecule.smiles for group in sampled.molecules for molecule in group]
    assert rows["smiles"].tolist() == smiles
    assert rows["sample_id"].tolist() == [f"p{row:05d}-{sample:03d}" for row in rows_of for sample in range(16)]
    letters, is_valid = letters_of(smiles), np.array([bool(text) for text in smiles])
    assert np.unique(letters[is_valid][~np.isnan(letters[is_valid])]).size > 1
    np.testing.assert_array_equal(rows["reward_letters"][is_valid], letters[is_valid])
    assert rows["asked_letters"].tolist() == is_valid.astype(int).tolist()
    assert rows["unscored_letters"].tolist() == (is_valid & np.isnan(letters)).astype(int).tolist()
    assert 0 < rows["unscored_letters"].sum() < is_valid.sum() < len(rows)
    np.testing.assert_array_equal(rows["reward"], sampled.rewards.total.flatten())
