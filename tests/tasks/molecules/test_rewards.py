import itertools

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from rdkit import Chem
from rdkit.Chem import QED
from tiny_molecules import parsed

from grpo_pipeline.core.policy_gradient.advantages import compute_advantages
from grpo_pipeline.core.rewards import combine_rewards
from grpo_pipeline.core.training.micro_batches import PerPrompt
from grpo_pipeline.rewards.group_rewards import RewardFailedError
from grpo_pipeline.rewards.measure_check import check_measure
from grpo_pipeline.rewards.params import PoolParams
from grpo_pipeline.rewards.pool import RewardPool
from grpo_pipeline.rewards.shares import RewardShare
from grpo_pipeline.tasks.molecules.batch import Outcomes
from grpo_pipeline.tasks.molecules.graphs.decoding import decode_parsed
from grpo_pipeline.tasks.molecules.graphs.parsed_molecules import ParsedMolecule
from grpo_pipeline.tasks.molecules.rewards import reward
from grpo_pipeline.tasks.molecules.rewards.params import MoleculeReward
from grpo_pipeline.tasks.molecules.rewards.reward import gather_rewards, submit_rewards
from grpo_pipeline.tasks.molecules.rewards.uniqueness import unique_in_group

BROKEN = decode_parsed(ParsedMolecule(("C", "O", "O"), (0,) * 3, ((0, 1, "triple"),)))
APART = decode_parsed(ParsedMolecule(("C", "O"), (0,) * 2, ()))
GROUPS = [["CCO", None, "OCC", "CC#N"], ["c1ccccc1", "CCO", "apart", "CC"]]
WEIGHTS = {"validity": 1.0, "qed": 0.5, "novelty": 1.0, "uniqueness": 0.25}
ODD = {"odd": {"function": "tiny_chemistry:refuses_nitrogen", "weight": 1.0}}
ROWS = [[{None: BROKEN, "apart": APART}.get(text) or decode_parsed(parsed(text)) for text in group] for group in GROUPS]


def make(*, weights=None, own=None, invalid_penalty=0.0):
    terms = {name: {"weight": weight} for name, weight in (weights or WEIGHTS).items()}
    if weights is None:
        terms["forbidden"] = {"weight": 0.125, "patterns": ["C#N"]}
    return MoleculeReward.model_validate(terms | {"own": own, "invalid_penalty": invalid_penalty})


def processes(workers=0, failure="exclude"):
    return RewardPool(PoolParams(workers=workers, timeout_seconds=30, chunk_size=2, cache_size=100, failure=failure))


def measure(params, molecules=ROWS, known=("CCO",), references=None, **how):
    with processes(**how) as pool:
        return submit_rewards(params, pool, molecules=molecules, known={*known}, references=references).result()


def test_parts_of_valid_and_invalid_molecules():
    """The same ones wherever they are measured."""
    rewards, alone = measure(make(), workers=1), measure(make()).components
    assert {name: part.tolist() for name, part in alone.items()} == {n: p.tolist() for n, p in rewards.components.items()}
    assert rewards.components["validity"].tolist() == [[1, 0, 1, 1], [1, 1, 0, 1]]
    assert rewards.components["novelty"].tolist() == [[0, 0, 0, 1], [1, 0, 0, 1]]
    # CCO is there twice in the first group, and once in each of the two.
    assert rewards.components["uniqueness"].tolist() == [[0, 0, 0, 1], [1, 1, 0, 1]]
    assert rewards.components["forbidden"].tolist() == [[1, 0, 1, 0], [1, 1, 0, 1]]
    ethanol = QED.qed(Chem.MolFromSmiles("CCO"))
    assert rewards.components["qed"][0].tolist() == [ethanol, 0.0, ethanol, QED.qed(Chem.MolFromSmiles("CC#N"))]
    assert list(rewards.components) == list(rewards.weights) == ["validity", "uniqueness", "qed", "forbidden", "novelty"]
    assert not any(part.requires_grad for part in rewards.components.values())
    assert set(rewards.failures.values()) == {0}


def test_an_invalid_molecule_pays_or_is_excluded_and_a_failed_one_is_not_invalid():
    assert measure(make(weights={"qed": 1.0}, invalid_penalty=-0.5)).components["qed"][0, 1] == -0.5
    rewards = measure(make(weights={"qed": 1.0}, invalid_penalty=None))
    assert rewards.components["qed"].isnan().tolist() == [[False, True, False, False], [False, False, True, False]]
    total = combine_rewards(rewards.components, rewards.weights).total
    assert compute_advantages(total, method="group").values[0, 1] == 0.0
    rewards = measure(make(own=ODD), failure=-3.0)
    assert rewards.components["odd"].tolist() == [[3, 0, 3, -3], [6, 3, 0, 2]]
    assert rewards.failures["odd"] == 1
    assert "it raised KeyError: 'CC#N'" in rewards.causes["odd"]


def test_the_mean_of_the_group_says_nothing_about_an_invalid_molecule():
    """Its advantage comes from validity alone, and the valid ones are compared as if it were not there."""
    rewards = measure(make(weights={"validity": 1.0, "qed": 1.0, "novelty": 1.0}, invalid_penalty=None))
    assert rewards.components["validity"].tolist() == [[1, 0, 1, 1], [1, 1, 0, 1]]
    assert rewards.components["novelty"][0].tolist() == [0, pytest.approx(1 / 3), 0, 1]
    qed, valid = rewards.components["qed"][0], [0, 2, 3]
    assert qed[1] == pytest.approx(float(qed[valid].mean()))
    centred = compute_advantages(combine_rewards(rewards.components, rewards.weights).total, method="mean_only").values[0]
    others = qed[valid] + rewards.components["novelty"][0, valid]
    torch.testing.assert_close(centred[1], torch.tensor(-0.75).double())
    torch.testing.assert_close(centred[valid], 0.25 + others - others.mean())
    section = make(own=ODD, weights={"validity": 1.0}, invalid_penalty=None)  # what was not scored is left out of the mean
    np.testing.assert_array_equal(measure(section).components["odd"][0], [3, 3, 3, np.nan])
    # No molecule of the group is valid; and one is, but could not be scored.
    nothing = measure(section, [[BROKEN] * 2, [ROWS[0][3], BROKEN]]).components["odd"]
    np.testing.assert_array_equal(nothing, [[0, 0], [np.nan, np.nan]])


def test_groups_have_their_own_references():
    own = {"beside": {"function": "tiny_chemistry:counts_references", "weight": 1.0}}
    rewards = measure(make(own=own), references=[["a", "b"], ["c"]])
    assert rewards.components["beside"].tolist() == [[2, 0, 2, 2], [1, 1, 0, 1]]
    with pytest.raises(ValueError, match="references must have one row per group, got 1 for 2"):
        measure(make(), references=[["a"]])


def test_uniqueness_in_the_batch_looks_at_all_groups_that_are_scored_together():
    """CCO is in both groups: unique in the second, and not in the batch."""
    weights = {"validity": 1.0, "uniqueness": 0.5, "batch_uniqueness": 1.0}
    together = measure(make(weights=weights)).components
    assert together["uniqueness"][1].tolist() == [1, 1, 0, 1]
    assert together["batch_uniqueness"].tolist() == [[0, 0, 0, 1], [1, 0, 0, 1]]
    alone = [measure(make(weights=weights), [group]).components for group in ROWS]
    assert [part["batch_uniqueness"][0].tolist() for part in alone] == [part["uniqueness"][0].tolist() for part in alone]
    # Against the definition, what the group loses with the sample, on all groups of four out of three molecules.
    groups = [list(group) for group in itertools.product("abc", repeat=4)]
    naive = [[len({*group}) - len({*group[:place], *group[place + 1 :]}) for place in range(4)] for group in groups]
    np.testing.assert_array_equal(unique_in_group(groups).numpy(), naive)


LONG = {"function": "tiny_rewards:slow", "weight": 0.25, "options": {"seconds": 0.0}}
SECTION = {
    "validity": {"weight": 1.0}, "qed": {"weight": 0.5}, "logp": {"weight": 1.0, "low": 1, "high": 2, "width": 0.5},
    "wanted": {"weight": 0.125, "patterns": ["c1ccccc1"]}, "own": {"long": LONG}, "invalid_penalty": 0.0,
}  # fmt: skip


def test_parts_are_built_in_and_own_and_one_that_is_not_named_is_not_computed(monkeypatch):
    """Neither measured nor counted, whether it is null or absent."""
    params = MoleculeReward.model_validate(SECTION)
    assert params.weights == {"validity": 1.0, "qed": 0.5, "logp": 1.0, "wanted": 0.125, "long": 0.25}
    window, wanted = {"low": 1.0, "high": 2.0, "width": 0.5}, {"patterns": ["c1ccccc1"]}
    options = {"qed": {}, "logp": window, "wanted": wanted, "long": {"seconds": 0.0}}
    assert {name: dict(measure.options) for name, measure in params.measures.items()} == options
    for one in params.measures.values():
        check_measure(one)
    params = MoleculeReward.model_validate({"validity": {"weight": 1.0}, "novelty": None, "qed": None, "own": None})
    assert params.weights == {"validity": 1.0}
    assert not params.measures
    for function in ("novelty", "unique_in_group", "unique_in_batch"):
        monkeypatch.setattr(reward, function, lambda *args: pytest.fail("it was computed"))
    found = measure(params, [ROWS[0][:1]])
    assert {name: part.tolist() for name, part in found.components.items()} == {"validity": [[1.0]]}


WINDOW = {"weight": 1.0, "low": 1, "high": 2, "width": 1}


@pytest.mark.parametrize(
    ("validity", "penalty", "rule"),
    [(1.0, None, "group_mean"), (None, None, "exclude"), (1.0, -2.0, -2.0), (None, 0.0, 0.0)],
)
def test_a_graph_that_is_not_valid_is_judged_by_validity_left_out_or_penalised(validity, penalty, rule):
    terms = {"validity": validity and {"weight": validity}, "qed": {"weight": 1.0}, "invalid_penalty": penalty}
    assert MoleculeReward.model_validate(terms).invalid == rule


def test_reward_params_refuses():
    for changes, message in (
        ({"logp": {"weight": 1.0}}, r"logp.low\n.*Field required"),
        ({"wanted": {"weight": 1.0, "patterns": ["[X"]}}, r"must be SMARTS that RDKit reads, got '\[X'"),
        ({"wanted": {"weight": 1.0, "patterns": []}}, "wanted.patterns"),
        ({"logp": WINDOW | {"low": 2, "high": 1}}, "low must be at most high, got 2.0 and 1.0; exchange them"),
        ({"logp": WINDOW | {"width": 0}}, "logp.width"),
        ({"qed": WINDOW}, "qed.low"),
        ({"invalid": "group_mean"}, "invalid"),
        ({"invalid_penalty": "group_mean"}, "invalid_penalty"),
        ({"own": {"qed": LONG}}, "the name of an own reward must be a new word, got 'qed'"),
        ({"beauty": {"weight": 1.0}}, "beauty"),
    ):
        with pytest.raises(ValidationError, match=message):
            MoleculeReward.model_validate(SECTION | changes)


def gathered(params, *parts):
    """Gather the rewards of groups that were measured in several parts, each beside itself alone."""
    with processes() as pool:
        shares = []
        for part in parts:
            pending = submit_rewards(params, pool, molecules=part, known={"CCO"})
            shares += [RewardShare(pending, row) for row in range(len(part))]
        molecules = tuple(group for part in parts for group in part)
        return gather_rewards(params, Outcomes(PerPrompt(molecules), PerPrompt(tuple(shares))), shape=(len(shares), 4))


def test_rewards_measured_in_parts_of_unequal_size_come_back_in_order():
    """CCO is in the first and the last group: not unique among all, whatever part it was measured in."""
    groups = [*ROWS, [ROWS[1][3], ROWS[0][3], BROKEN, ROWS[0][0]]]
    weights = {"validity": 1.0, "qed": 0.5, "novelty": 1.0, "uniqueness": 0.5, "batch_uniqueness": 1.0}
    params = make(weights=weights, invalid_penalty=-2.0)
    found = gathered(params, groups[:2], groups[2:])
    assert list(found) == ["validity", "uniqueness", "qed", "batch_uniqueness", "novelty"]
    assert found["validity"].tolist() == [[1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 0, 1]]
    assert found["novelty"].tolist() == [[0, -2, 0, 1], [1, 0, -2, 1], [1, 1, -2, 0]]
    assert found["uniqueness"].tolist() == [[0, -2, 0, 1], [1, 1, -2, 1], [1, 1, -2, 1]]
    # Benzene alone is once among the twelve; CC and CC#N are twice.
    assert found["batch_uniqueness"].tolist() == [[0, -2, 0, 0], [1, 0, -2, 0], [0, 0, -2, 0]]
    qed = [[QED.qed(Chem.MolFromSmiles(one.smiles)) if one.is_valid else -2 for one in group] for group in groups]
    assert found["qed"].tolist() == qed
    together = gathered(params, groups)
    assert {name: part.tolist() for name, part in together.items()} == {name: part.tolist() for name, part in found.items()}
    assert all(part.dtype == torch.float64 for part in found.values())


def test_where_nothing_was_drawn_every_reward_is_missing():
    found = gathered(make(weights={"validity": 1.0, "qed": 0.5, "novelty": 0.25}))
    assert list(found) == ["validity", "qed", "novelty"]
    empty = gather_rewards(make(weights={"qed": 0.5}), Outcomes(PerPrompt(()), PerPrompt(())), shape=(3, 2))["qed"]
    assert (empty.shape, empty.dtype, bool(empty.isnan().all())) == ((3, 2), torch.float64, True)


@pytest.mark.parametrize(("valid", "own", "stops"), [(8, ODD, True), (7, ODD, False), (8, {"odd": None}, False)])
def test_a_reward_that_scores_none_of_eight_valid_molecules_stops(valid, own, stops):
    """Exactly eight of sixteen samples are valid, in two parts; seven are bad luck, and nobody asks one that is not there."""
    nitrile = ROWS[0][3]  # tiny_chemistry refuses nitrogen
    params = make(weights={"validity": 1.0, "novelty": 1.0}, own=own)
    groups = [[nitrile if 4 * row + place < valid else BROKEN for place in range(4)] for row in range(4)]
    if not stops:
        assert gathered(params, groups[:1], groups[1:])["validity"].sum() == valid
        return
    said = "reward 'odd' must score at least one valid molecule of a batch, got no value from .* 'CC#N': it raised KeyError"
    with pytest.raises(RewardFailedError, match=said):
        gathered(params, groups[:1], groups[1:])
    # A value for one of them is enough, and what an invalid one gets is none.
    groups[1][0] = ROWS[1][1]
    np.testing.assert_array_equal(gathered(params, groups[:1], groups[1:])["odd"][1], [3, np.nan, np.nan, np.nan])
