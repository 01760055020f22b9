"""The molecule task in the loop: exact KL, micro-batches, estimators, what is refused, what fails."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_attention
import tiny_chemist as tiny
import torch
from loss_terms import mixed_losses
from torch import Tensor

from grpo_pipeline.core.rng import Stream, numpy_generator, step_generator
from grpo_pipeline.core.storage.weights import ModelWeights
from grpo_pipeline.core.training.micro_batches import join_prompts
from grpo_pipeline.core.training.state import TrainState
from grpo_pipeline.pipelines.training.start import build_state
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.tasks.frames import texts_of
from grpo_pipeline.tasks.molecules import build, molecule_data
from grpo_pipeline.tasks.molecules.build import check_arms
from grpo_pipeline.tasks.molecules.data.examples import with_table
from grpo_pipeline.tasks.molecules.diffusion import size_groups, trajectories
from grpo_pipeline.tasks.molecules.diffusion.step_scores import score_steps
from grpo_pipeline.tasks.molecules.evaluation import evaluate, graph_draws, graph_table, validation
from grpo_pipeline.tasks.molecules.evaluation.trivial_graphs import training_copies
from grpo_pipeline.tasks.molecules.graphs.decoding import decode
from grpo_pipeline.tasks.molecules.task import MoleculeTask
from grpo_pipeline.tasks.sample_rewards import measure

ROWS = np.arange(4)
REPLAY = {"capacity": 4, "max_age_steps": 2, "share": 0.5, "importance_cap": 2.0}


def start(task: MoleculeTask) -> TrainState:
    """Return a state whose policy is not its reference."""
    state = build_state(tiny.algorithm_params(), tiny.training_params(), 0, task, tiny.make_data())
    tiny_attention.shake(state.policy, seed=1, scale=0.1)
    return state


@pytest.mark.parametrize(("chunk", "estimator"), [(None, "exact"), (2, "exact"), (2, "k3")])
def test_the_kl_of_an_update_is_the_mean_over_decisions(chunk: int | None, estimator: str) -> None:
    task = tiny.make_task(trajectory={"entry_reduction": "sum", "steps_per_chunk": chunk})
    algorithm, training = tiny.algorithm_params(losses={"kl": {"weight": 1.0, "estimator": estimator}}), tiny.training_params()
    state, batch = start(task), task.make_batch(tiny.make_data(), ROWS)
    experience = tiny_attention.gather(algorithm, training, task, state, batch)
    drawn, temperature = experience.rollouts, experience.temperature
    assert (experience.reference.logprobs is None) == (estimator == "exact")  # asked while the update scores, or before
    terms = mixed_losses(algorithm, training, task, state, experience, 0)[0].terms
    asked = {"params": task.trajectory, "temperature": temperature}
    with torch.no_grad():
        scores = score_steps(state.policy, drawn, reference=state.reference, **asked)
        gap = score_steps(state.reference, drawn, **asked).logprobs - scores.logprobs  # log q / p: k3 = q / p - 1 - log q / p
    expected = scores.kl.mean() if estimator == "exact" else (gap.exp() - 1 - gap).mean()
    assert float(expected) > 1e-3
    assert float(terms["kl"].detach()) == pytest.approx(float(expected), rel=1e-4)


def test_the_supervised_loss_of_groups_of_similar_size_is_that_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    task = tiny.make_task()
    policy, batch, found = task.build_policy(0), task.make_batch(tiny.make_data(), np.arange(13)), []
    assert len(set(batch.prompts.sizes.tolist())) > 1
    for cut_cost in (0, 10**9):
        monkeypatch.setitem(size_groups.CUT_COSTS, "cpu", cut_cost)
        loss = task.supervised_loss(policy, batch.prompts, batch, None)
        found.append((loss, *torch.autograd.grad(loss, list(policy.parameters()))))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
    two = task.supervised_counts(task.make_batch(tiny.make_data(), np.array([0, 12])))
    assert two.tolist() == [6.0, 6.0, 7.0]  # 2 + 4 atoms, 1 + 6 pairs


def test_a_prompt_tells_the_properties_of_its_molecule_in_training_spreads() -> None:
    task, data = tiny.make_task(prompt={"conditions": ["logp"]}), tiny.make_data(conditions=["logp"])
    train, logp = data.examples.rows("train"), data.examples.table["logp"].to_numpy()
    expected = (logp - logp[train].mean()) / logp[train].std()
    np.testing.assert_allclose(data.conditions[:, 0].numpy(), expected, rtol=1e-5)
    batch = task.make_batch(data, np.array([3, 1]))
    np.testing.assert_allclose(batch.prompts.conditions[:, 0], expected[[3, 1]], rtol=1e-5)
    assert batch.targets == tuple((f"{logp[row]:.6g}",) for row in (3, 1))
    policy, drawn = start(task).policy, []
    for move in (0.0, 3.0):
        prompts = replace(batch.prompts, conditions=batch.prompts.conditions + move)
        drawn.append(task.draw(policy, prompts, 64, temperature=1.0, generator=torch.Generator().manual_seed(0)).logprobs)
    assert not torch.equal(*drawn)


def test_a_training_batch_draws_its_noise_and_another_one_has_always_the_same() -> None:
    task, data = tiny.make_task(), tiny.make_data()
    fixed = [task.make_batch(data, ROWS) for _ in range(2)]
    assert torch.equal(fixed[0].times, fixed[1].times)
    assert torch.equal(fixed[0].noisy.bonds, fixed[1].noisy.bonds)
    assert torch.equal(task.make_batch(data, ROWS + 4).times, fixed[0].times)
    for batch, seed in ((fixed[0], 0), (task.make_batch(data, ROWS, generator=torch.Generator().manual_seed(5)), 5)):
        source = torch.Generator().manual_seed(seed)
        wanted = torch.randint(1, 9, (4,), generator=source)
        assert wanted.tolist() != wanted.flip(0).tolist()
        assert torch.equal(batch.times, wanted)
        noisy = task.diffusion.corrupt(batch.clean, wanted, batch.prompts.masks, generator=source)
        assert all(torch.equal(one, other) for one, other in zip(batch.noisy, noisy, strict=True))
    times: list[Tensor] = [task.make_batch(data, ROWS, generator=torch.Generator().manual_seed(s)).times for s in range(8)]
    assert {int(t) for t in torch.cat(times)} == set(range(1, 9))


def test_of_many_training_molecules_so_many_are_drawn_to_compare_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each arm writes them: as many as there are, they would be most of every table of predictions."""
    data = tiny.make_data()
    trained_on = data.examples.table["smiles"].iloc[data.examples.rows("train")].tolist()
    assert data.training_rows["smiles"].tolist() == trained_on
    monkeypatch.setattr(molecule_data, "COMPARED_WITH", 2)
    first, second = (tiny.make_data().training_rows for _ in range(2))
    assert len(first) == 2 < len(trained_on)
    assert set(first["smiles"]) <= set(trained_on)
    assert first.equals(second)
    assert first["is_known"].tolist() == [1, 1]


VALUE, K3 = {"losses": {"value": {"weight": 1.0}}}, {"losses": {"kl": {"estimator": "k3"}}}
K1_IN_REWARD = {"losses": {"kl": None}, "kl_in_reward": {"weight": 0.05, "estimator": "k1"}}


@pytest.mark.parametrize(
    ("arm", "changes", "trajectory", "words"),
    [
        ("supervised", {"proposal": "uniform"}, {}, "proposal must be policy or none"),
        ("grpo", {"replay": REPLAY}, {}, "replay must be null"),
        ("grpo", {"advantage": {"baseline": "value"}} | VALUE, {}, "losses.value must be null"),
        ("grpo", VALUE, {}, "losses.value must be null"),
        ("grpo", K3, {"entry_reduction": "mean"}, "the estimator of the KL must be exact with entry_reduction = mean"),
        ("grpo", K3, {"entry_reduction": "sum", "estimator": "eager"}, "the estimator of the KL must be exact"),
        ("grpo", K1_IN_REWARD, {"entry_reduction": "mean"}, "the estimator of the KL must be exact with entry_reduction = mean"),
        ("grpo", K1_IN_REWARD, {"entry_reduction": "sum"}, "steps_per_update must be null with kl_in_reward"),
        ("grpo", {"update_epochs": 2}, {"estimator": "eager"}, "update_epochs must be 1 with estimator = eager, got 2"),
        ("eager", {}, {"steps_per_update": 9}, "steps_per_update must be at most the 8 steps of the noise, got 9"),
    ],
)
def test_arms_that_ask_for_what_is_not_there_are_refused(arm: str, changes: Any, trajectory: Any, words: str) -> None:
    algorithm, trajectory, task = tiny.algorithm_params(arm, **changes), tiny.trajectory_params(**trajectory), tiny.make_task()
    with pytest.raises(ValueError, match=words):
        check_arms(task, [(algorithm, trajectory)])
    with pytest.raises(ValueError, match=words):
        build_state(algorithm, tiny.training_params(), 0, replace(task, trajectory=trajectory), None)


@pytest.mark.parametrize("failure", ["exclude", "stop"])
def test_a_reward_that_always_fails_stops_the_run(failure: str) -> None:
    broken = {"own": {"broken": {"function": "tiny_chemistry:raises", "weight": 1.0, "options": {}}}}
    with pytest.raises(RewardFailedError, match="reward 'broken' must score texts of the training data, got no value for any of"):
        tiny.make_task(reward=broken)
    sound = tiny.make_task(reward_pool={"failure": failure})  # one that fails later passes the trial
    task = replace(sound, rewards=tiny.reward_params(**broken))
    policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(), ROWS)
    drawn = task.draw(policy, batch.prompts, 16, temperature=1.0, generator=torch.Generator().manual_seed(0))
    outcomes = task.decode(policy, batch.prompts, drawn, batch)
    assert any(molecule.is_valid for group in outcomes.molecules for molecule in group)
    with pytest.raises(RewardFailedError, match="reward 'broken' must score"):
        task.reward(batch, drawn, outcomes)


def test_own_rewards_are_tried_on_training_molecules_beside_their_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: dict[str, Any] = {}
    monkeypatch.setattr(build, "try_rewards", lambda measures, pool, **named: tried.update(named))
    tiny.make_task(reward=LETTERS, prompt={"conditions": ["qed"]})
    table = tiny.make_examples().table.query("split == 'train'")
    assert tried["subjects"] == table["smiles"].tolist()
    assert tried["references"] == tuple((f"{qed:.6g}",) for qed in table["qed"])


def test_a_checkpoint_agrees_on_what_decides_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the code of a reward, and the weights that it begins with; the processes that measure are no part of it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "changing_reward.py").write_text("def pays(smiles, references):\n    return [1.0] * len(smiles)\n")
    own = {"own": {"letters": {"function": "changing_reward:pays", "weight": 1.0}}}
    same = [{"reward": own}, {"reward": own, "reward_pool": {"chunk_size": 1}}]
    others = [
        {}, {"reward": own | {"qed": {"weight": 0.125}}}, {"reward": own, "reward_pool": {"failure": 0.0}},
        {"noise": {"limit": "uniform"}},
        {"trajectory": {"entry_reduction": "mean"}},
    ]  # fmt: skip
    data = tiny.make_data()
    prints = [str(tiny.make_task(**change).fingerprint(data)) for change in (*same, *others)]
    begun = tiny.make_task(**same[0])
    weights = ModelWeights({name: value + 1 for name, value in begun.build_policy(0).state_dict().items()}, {})
    prints.append(str(replace(begun, start=weights).fingerprint(data)))
    (tmp_path / "changing_reward.py").write_text("def pays(smiles, references):\n    return [2.0] * len(smiles)\n")
    prints.append(str(tiny.make_task(**same[0]).fingerprint(data)))
    assert prints[0] == prints[1]
    assert len(set(prints)) == len(prints) - 1
    for name, value in replace(begun, start=weights).build_policy(1).state_dict().items():
        assert torch.equal(value, weights.tensors[name])


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


def test_copies_of_the_audit_are_training_molecules_of_the_nearest_size() -> None:
    examples = tiny.make_data().examples
    sizes = np.array([2, 3, 4, 4])  # the training molecules have 2 or 3 atoms
    copied = training_copies(sizes, examples, 4, generator=np.random.default_rng(0))
    assert copied.sizes.tolist() == [2, 3, 3, 3]
    assert {molecule.smiles for molecule in decode(copied, examples.vocabulary)} <= examples.known("train")


def test_validation_counts_different_molecules_among_the_valid_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    task, data, smiles = tiny.make_task(sampling={"graphs_at_once": 16}), tiny.make_data(), []  # a batch per prompt
    draw = graph_draws.draw_graphs

    def watched(*args: Any, **named: Any) -> graph_draws.SampledGraphs:
        drawn = draw(*args, **named)
        assert len(drawn.molecules) == 1  # 16 graphs at once
        smiles.extend(molecule.smiles for group in drawn.molecules for molecule in group)
        return drawn

    monkeypatch.setattr(validation, "draw_graphs", watched)
    found = task.validate(task.build_policy(0), data, task.rows(data, "val"), seed=0, n_samples=16)
    valid = [text for text in smiles if text]
    assert 0 < len(set(valid)) < len(valid) < len(smiles) == 2 * 16
    assert found["molecule/validity"] == len(valid) / len(smiles)
    assert found["molecule/uniqueness"] == len(set(valid)) / len(valid)
    assert found["molecule/novelty"] == len(set(valid) - data.examples.known("train")) / len(set(valid))
    assert found[task.validated_by] == len(set(valid) - data.examples.known("train")) / len(smiles)


def test_a_validation_of_unequal_batches_is_the_mean_over_its_prompts() -> None:
    """Three prompts, two of them at a time: the loss of the second batch counts once, and its noise is its own.

    Molecules with nitrogen have no reward: they count in no mean.
    """
    task, data = tiny.make_task(sampling={"graphs_at_once": 8, "prompts": 3}, reward=LETTERS), tiny.make_data()
    policy, rows, losses, rewards = start(task).policy, np.array([4, 8, 9]), [], []
    for number, part in enumerate((rows[:2], rows[2:])):
        batch = task.make_batch(data, part)
        drawn = graph_draws.draw_graphs(task, policy, batch, 4, seed=7, number=number, stream=Stream.VALIDATION)
        rewards += drawn.rewards.total.flatten().tolist()
        losses += [float(task.supervised_loss(policy, batch.prompts, batch, None).detach())] * len(part)
    assert losses[0] != losses[2]
    found = task.validate(policy, data, rows, seed=7, n_samples=4)
    assert found["x0/loss"] == pytest.approx(sum(losses) / 3, rel=1e-6)
    assert 0 < np.isnan(rewards).sum() < 12
    drawn = graph_draws.draw_graphs(task, policy, batch, 4, seed=7, number=0, stream=Stream.VALIDATION)
    assert np.nansum(rewards[8:]) != pytest.approx(float(drawn.rewards.total.nansum()))  # noise of the first batch tells
    assert found["reward/mean"] == pytest.approx(np.nanmean(rewards), rel=1e-12)


def test_an_evaluation_draws_each_batch_with_noise_of_its_own_and_its_start() -> None:
    """Five prompts, two at a time, are drawn from all rows by the seed; another number of samples asks the start again."""
    task, data = tiny.make_task(sampling={"graphs_at_once": 8, "prompts": 5}), tiny.make_data()
    policy, seed = start(task).policy, 3
    rows = np.sort(numpy_generator(seed, Stream.EVALUATION_ROWS).permutation(np.arange(13))[:5])
    assert rows.tolist() != [*range(5)]
    for n_samples in (4, 3):
        found = task.evaluate(policy, data, np.arange(13), seed=seed, n_samples=n_samples)
        for rule, model in (("policy", policy), ("start", task.build_policy(seed))):
            smiles: list[str] = []
            at_once = 8 // n_samples
            for number in range(-(-5 // at_once)):
                batch = task.make_batch(data, rows[number * at_once :][:at_once])
                drawn = graph_draws.draw_graphs(task, model, batch, n_samples, seed=seed, number=number, stream=Stream.EVALUATION)
                smiles += [one.smiles for group in drawn.molecules for one in group]
            assert found.loc[found["rule"] == rule, "smiles"].tolist() == smiles
            asked = found.loc[found["rule"] == rule, "prompt_id"]
            assert asked.tolist() == np.repeat(graph_table.prompt_names(rows), n_samples).tolist()


def test_graphs_of_an_evaluation_are_drawn_with_noise_of_their_batch() -> None:
    task = tiny.make_task()
    policy, batch = start(task).policy, task.make_batch(tiny.make_data(), ROWS)
    found = []
    for number in (0, 1):
        drawn = graph_draws.draw_graphs(task, policy, batch, 4, seed=2, number=number, stream=Stream.EVALUATION)
        generator = step_generator(2, number, stream=Stream.EVALUATION)
        expected = task.sample(policy, batch.prompts, 4, temperature=1.0, proposal="policy", generator=generator)
        assert torch.equal(drawn.graphs.atoms, trajectories.graphs_at(expected, 0).atoms)
        found.append(drawn.graphs.atoms)
    assert not torch.equal(*found)


LETTERS = {
    "own": {"letters": {"function": "tiny_chemistry:refuses_nitrogen", "weight": 2.0, "options": {}}},
}


def letters_of(smiles: list[str]) -> np.ndarray:
    """Return what the reward of LETTERS is for valid molecules."""
    return np.array([np.nan if "N" in text else sum(map(str.isalpha, text)) for text in smiles], dtype=float)


def test_audited_and_evaluated_rows_hold_what_their_own_molecule_earned() -> None:
    task = tiny.make_task(reward=LETTERS)
    rows_of = [0, 4, 12]  # 2, 3 and 4 atoms
    policy, batch = start(task).policy, task.make_batch(tiny.make_data(), np.array(rows_of))
    sampled = graph_draws.draw_graphs(task, policy, batch, 16, seed=2, number=0, stream=Stream.EVALUATION)
    rows = evaluate.sample_rows(task, batch, sampled)
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
    audited = task.audit(policy, tiny.make_data(), np.array([0, 4, 12, 6]), seed=0, n_samples=6).query("is_valid == 1")
    np.testing.assert_array_equal(audited["reward_letters"], letters_of(list(audited["smiles"])))
    assert audited.groupby("policy")["reward_letters"].nunique().max() > 1


def test_a_showcase_shows_the_way_of_the_first_sample_from_noise_to_graph() -> None:
    """Eight steps in six frames: 0, 1.6, 3.2, 4.8, 6.4 and 8 rounded, the noise first; the molecules are those of all samples."""
    task, data, rows = tiny.make_task(), tiny.make_data(), np.array([12, 3])
    policy = start(task).policy
    shown = task.showcase(policy, data, rows, seed=2)
    generator = step_generator(2, stream=Stream.SHOWCASE)
    drawn = task.draw(policy, task.make_batch(data, rows).prompts, 4, temperature=1.0, generator=generator)
    assert shown["times"].tolist() == [8, 6, 5, 3, 2, 0]
    for name in ("atoms", "charges", "bonds"):
        assert shown[name].tolist() == [[getattr(drawn, name)[p, 0, t].tolist() for t in (8, 6, 5, 3, 2, 0)] for p in (0, 1)]
    assert not torch.equal(drawn.atoms[:, 0], drawn.atoms[:, 3])
    assert shown["smiles"].tolist() == [[one.smiles for one in group] for group in task.molecules(drawn)]
    assert (shown["size"].tolist(), shown["prompt_id"].tolist()) == ([4, 2], ["p00012", "p00003"])


def test_a_frame_of_training_is_one_molecule_of_each_size_and_its_reward_now() -> None:
    task, data, rows = tiny.make_task(), tiny.make_data(), np.arange(1, 13)
    policy = start(task).policy
    first, again, other = (task.training_frame(one, data, rows, seed=2) for one in (policy, policy, task.build_policy(3)))
    assert all(torch.equal(first[name], again[name]) for name in first)
    batch, generator = task.make_batch(data, rows), step_generator(2, stream=Stream.FRAMES)
    drawn = task.draw(policy, batch.prompts, 1, temperature=1.0, generator=generator)
    decoded = [molecule for (molecule,) in task.molecules(drawn)]
    smiles, cause = texts_of(first["smiles"].numpy()), texts_of(first["cause"].numpy())
    assert (smiles, cause) == ([one.smiles for one in decoded], [one.cause for one in decoded])
    assert smiles != texts_of(other["smiles"].numpy())
    assert {bool(text) for text in smiles} == {True, False}
    assert all(bool(text) != bool(why) for text, why in zip(smiles, cause, strict=True))
    assert first["reward"].tolist() == measure(task, policy, batch, drawn).total[:, 0].tolist()


def test_molecules_in_no_split_are_known_to_nobody_and_scale_nothing() -> None:
    data = tiny.make_data(conditions=["logp"])
    table = data.examples.table
    left_out = with_table(
        data.examples, table.assign(split=["" if row in (1, 9) else split for row, split in enumerate(table["split"])])
    )
    found = molecule_data.attach_conditions(left_out, tiny.prompt_params(conditions=["logp"]))
    train = np.array([0, 2, 3, 4, 5, 6, 7])
    logp, smiles = table["logp"].to_numpy(), table["smiles"].tolist()
    assert [left_out.rows(split).tolist() for split in ("train", "val", "test")] == [train.tolist(), [8], [10, 11, 12]]
    assert left_out.known() == {smiles[row] for row in train}
    assert (found.scales.mean, found.scales.spread) == ((pytest.approx(logp[train].mean()),), (pytest.approx(logp[train].std()),))
    assert found.training_rows["smiles"].tolist() == [smiles[row] for row in train]


def test_nothing_is_drawn_for_every_sample_of_every_prompt_where_nothing_is_proposed() -> None:
    task, data = tiny.make_task(), tiny.make_data()
    batch = task.make_batch(data, np.array([12, 0]))
    drawn = task.sample(task.build_policy(0), batch.prompts, 3, temperature=1.0, proposal="none", generator=torch.Generator())
    for name, shape in (("actions", (2, 3, 0)), ("logprobs", (2, 3, 0)), ("is_valid", (2, 3, 0)), ("atoms", (2, 3, 1, 4)),
                        ("charges", (2, 3, 1, 4)), ("bonds", (2, 3, 1, 6))):  # fmt: skip
        assert getattr(drawn, name).shape == shape
    table = task.tabulate(data, batch, drawn)
    assert table["prompt_id"].tolist() == ["p00012"] * 3 + ["p00000"] * 3
    assert (table["sample"].tolist(), table["size"].tolist()) == ([0, 1, 2] * 2, [4] * 3 + [2] * 3)
    assert table["is_valid"].isna().all()
    parts, weights = task.reward(batch, drawn, task.decode(task.build_policy(0), batch.prompts, drawn, batch))
    assert parts.keys() == weights.keys()
    assert all(part.shape == (2, 3) and bool(part.isnan().all()) for part in parts.values())


def test_more_steps_per_update_than_the_noise_has_are_refused_at_the_build() -> None:
    tiny.make_task(trajectory={"steps_per_update": 8})
    with pytest.raises(ValueError, match="steps_per_update must be at most the 8 steps of the noise, got 9"):
        tiny.make_task(trajectory={"steps_per_update": 9})


def test_as_many_decisions_as_an_update_scores_are_kept() -> None:
    drawn = []
    for steps in (None, 3):
        task = tiny.make_task(trajectory={"steps_per_update": steps})
        policy, batch = task.build_policy(0), task.make_batch(tiny.make_data(), ROWS)
        source = torch.Generator().manual_seed(1)
        drawn.append(task.sample(policy, batch.prompts, 2, temperature=1.0, proposal="policy", generator=source))
    whole, chosen = drawn
    assert (whole.actions.shape, chosen.actions.shape) == ((4, 2, 8), (4, 2, 3))
    assert torch.equal(whole.atoms, chosen.atoms)
    torch.testing.assert_close(chosen.logprobs, whole.logprobs.gather(2, 8 - chosen.actions), rtol=0, atol=1e-6)
