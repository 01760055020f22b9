"""Rules without a model that the reward audit scores, and the rows of its batches."""

from itertools import product

import numpy as np
import tiny_chemist as tiny

from grpo_pipeline.core.rng import Stream
from grpo_pipeline.tasks.molecules.evaluation.graph_draws import draw_graphs
from grpo_pipeline.tasks.molecules.evaluation.graph_table import prompt_names
from grpo_pipeline.tasks.molecules.evaluation.trivial_graphs import chains, random_trees
from grpo_pipeline.tasks.molecules.graphs.graphs import MoleculeGraphs
from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary

N_SAMPLES = 4
VALENCES = {"F": 1, "O": 2}
Tree = tuple[str, tuple[int, ...]]


def trees_of(graphs: MoleculeGraphs, vocabulary: Vocabulary) -> list[Tree]:
    """Return the elements of each graph, and what each atom but the first hangs on: its only bond to an earlier atom."""
    found = []
    for atoms, bonds, size in zip(graphs.atoms, graphs.bonds, graphs.sizes.tolist(), strict=True):
        held = [bonds[place, :place].nonzero().flatten().tolist() for place in range(1, size)]
        assert all(len(earlier) == 1 for earlier in held)
        found.append(("".join(vocabulary.atoms[i] for i in atoms[:size]), tuple(earlier[0] for earlier in held)))
    return found


def test_random_trees_are_all_those_whose_atoms_have_room_and_no_other() -> None:
    """Enumerated: every choice of elements and of what each hangs on, kept where no atom has more bonds than its valence."""
    vocabulary, expected = Vocabulary(("O", "F"), (0,), BONDS, 4), set()
    for atoms in product("OF", repeat=4):
        for parents in product(range(1), range(2), range(3)):
            bonds = [parents.count(place) + (place > 0) for place in range(4)]
            if atoms[0] == "O" and all(bond <= VALENCES[atom] for bond, atom in zip(bonds, atoms, strict=True)):
                expected.add(("".join(atoms), parents))
    drawn = random_trees(np.full(600, 4), vocabulary, 5, generator=np.random.default_rng(0))
    assert set(trees_of(drawn, vocabulary)) == expected
    assert len(expected) == 14  # hung in a row 2, and 4 each as (0, 0, 1), (0, 1, 0) and (0, 0, 2)
    assert not bool(drawn.atoms[:, 4:].any())


def test_a_chain_is_of_carbon_or_else_of_what_can_have_most_neighbours() -> None:
    for atoms, element in ((("N", "C", "O"), "C"), (("F", "N", "O"), "N")):
        vocabulary = Vocabulary(atoms, (0,), BONDS, 4)
        graphs = chains(np.array([4, 1, 2]), vocabulary, 5)
        assert trees_of(graphs, vocabulary) == [(4 * element, (0, 1, 2)), (element, ()), (2 * element, (0,))]


def test_each_batch_of_an_audit_has_noise_of_its_own_and_the_last_one_is_smaller() -> None:
    """Five times one prompt, two at a time: with the noise of another batch, its graphs would be the same."""
    task, data = tiny.make_task(sampling={"graphs_at_once": 2 * N_SAMPLES}), tiny.make_data()
    policy, rows = task.build_policy(0), np.full(5, 4)
    table = task.audit(policy, data, rows, seed=3, n_samples=N_SAMPLES)
    smiles = {name: part["smiles"].tolist() for name, part in table.groupby("policy", sort=False)}
    assert {name: len(texts) for name, texts in smiles.items()} == dict.fromkeys(smiles, 5 * N_SAMPLES) | {"held_out": 5}
    drawn = []
    for number, batch in enumerate([rows[:2], rows[2:4], rows[4:]]):
        of_batch = draw_graphs(task, policy, task.make_batch(data, batch), N_SAMPLES, seed=3, number=number, stream=Stream.AUDIT)
        drawn += [one.smiles for group in of_batch.molecules for one in group]
    assert smiles["start"] == drawn
    for name in ("start", "noise", "random_tree"):
        assert smiles[name][:8] != smiles[name][8:16]


def test_rows_of_an_audit_belong_to_their_prompt_and_are_new_unless_known() -> None:
    task, data, rows = tiny.make_task(), tiny.make_data(), np.array([12, 0, 8])
    table = task.audit(task.build_policy(0), data, rows, seed=0, n_samples=N_SAMPLES)
    assert prompt_names(rows) == ["p00012", "p00000", "p00008"]
    for name, part in table.groupby("policy"):
        n = 1 if name == "held_out" else N_SAMPLES
        assert part["prompt_id"].tolist() == np.repeat(prompt_names(rows), n).tolist()
        assert part["sample"].tolist() == [*range(n)] * 3
        assert part["n_atoms"].tolist() == np.repeat([4, 2, 2], n).tolist() or name == "training_copy"
        is_valid = part["smiles"] != ""
        assert part["is_new"][is_valid].tolist() == [float(one not in task.known) for one in part["smiles"][is_valid]]
        assert part["is_new"][~is_valid].isna().all()
    held_out = table[table["policy"] == "held_out"]
    assert held_out["smiles"].tolist() == data.examples.table["smiles"].iloc[rows].tolist()
    assert held_out["is_new"].tolist() == [1.0, 0.0, 1.0]
