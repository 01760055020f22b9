"""Rows that the reading refuses are listed before a run stops for them, and are said before the error of a later step."""

import json

import pandas as pd
import pytest
from tiny_dialogue import ROOT, data_params, json_file, row

from grpo_pipeline.tasks.dialogue.data.params import DialogueSplitParams
from grpo_pipeline.tasks.dialogue.data.text_files import DialogueFiles
from grpo_pipeline.tasks.dialogue.pipelines import nodes as dialogue
from grpo_pipeline.tasks.molecules.data.params import MoleculeDataParams, MoleculeSplitParams
from grpo_pipeline.tasks.molecules.pipelines import nodes as molecules
from grpo_pipeline.tasks.params import SplitFractions
from grpo_pipeline.tasks.refusals import after_refusals, describe_refusals
from grpo_pipeline.tasks.text_lines import TextFile

FRACTIONS = SplitFractions(train=0.6, val=0.2, test=0.2)


def test_the_sentence_of_a_later_step_begins_with_what_was_refused():
    refused = pd.DataFrame({"reason": ["too long; cut it", "empty; fill it"]})
    told = describe_refusals(refused, n_left=3, where="m.csv line 4")
    assert told == "2 of 5 rows were refused, the first at m.csv line 4: too long; cut it"
    said = r"^2 of 5 rows .*: too long; cut it. With the others: no split; add data$"
    with pytest.raises(ValueError, match=said), after_refusals(told):
        raise ValueError("no split; add data")
    with pytest.raises(ValueError, match="^no split$"), after_refusals(describe_refusals(refused[:0], n_left=3, where="")):
        raise ValueError("no split")


def molecule_params(**changes):
    plain = {"source": {"kind": "smiles"}, "root": "data", "bonds": "kekulised", "atoms": None, "charges": None}
    return MoleculeDataParams(**plain | {"min_atoms": 2, "max_atoms": None, "on_bad_row": "fail"} | changes)


def test_molecules_are_listed_before_the_run_stops():
    file, generated = TextFile("data/m.smi", b"C\nCCO\nN\nCCC\nO\n"), {}
    for rule in ("fail", "quarantine"):
        params = molecule_params(on_bad_row=rule)
        checked, quarantine, _, report = molecules.check_molecules(params, file, generated)
        assert (list(checked["smiles"]), list(quarantine["row"]), report["refused"]) == (["CCO", "CCC"], [1, 3, 5], 3)
        split = MoleculeSplitParams(seed=0, by="smiles", fractions=FRACTIONS)
        said = r"m.smi line 1: a molecule must have at least 2 heavy atoms, got 1; .* \(3 of \d+ rows are bad: .*quarantine"
        if rule == "quarantine":
            said = r"^3 of 5 rows were refused, the first at data/m.smi line 1: .* With the others: split '.*' must hold mol"
        with pytest.raises(ValueError, match=said):
            molecules.split_molecules(split, params, checked, quarantine)
    # One atom is a molecule where the parameters allow it.
    checked, quarantine, _, report = molecules.check_molecules(molecule_params(min_atoms=1), file, generated)
    assert (list(checked["smiles"]), len(quarantine)) == (["C", "CCO", "N", "CCC", "O"], 0)
    none = molecules.check_molecules(molecule_params(), TextFile("data/m.smi", b"C\n"), generated)
    with pytest.raises(ValueError, match="there is nothing to go on with"):
        molecules.split_molecules(split, molecule_params(), none[0], none[1])


def test_dialogues_are_listed_before_the_run_stops():
    rows = [row(f"i bake {number}.", answers=[f"a{number}"]) for number in range(2)] + [{"question": None, "answers": ["x"]}]
    files = DialogueFiles(ROOT, json_file(rows), json_file([{"id": "s", "text": "t"}], "stories.jsonl"))
    split = DialogueSplitParams(seed=0, fractions=FRACTIONS)
    for rule, said in (
        ("fail", r"rows.jsonl line 3: key 'question' must be there, got null; .* \(1 of 3 rows are bad"),
        ("quarantine", r"^1 of 3 rows were refused, the first at /data/talk/rows.jsonl line 3: .* With the others: "),
    ):
        params = data_params(on_bad_row=rule)
        checked, _, quarantine, report = dialogue.check_dialogues(params, files, {})
        assert (len(checked), list(quarantine["row"]), report["refused"]) == (2, [3], 1)
        with pytest.raises(ValueError, match=said):
            dialogue.split_personas(split, params, checked, quarantine)
    # Nothing that can be used is no reason for a table that cannot be written.
    files = DialogueFiles(ROOT, json_file(rows[2:]), json_file([{"id": "s", "text": "t"}], "stories.jsonl"))
    checked, _, quarantine, report = dialogue.check_dialogues(params, files, {})
    assert (len(checked), len(quarantine), json.dumps(report)[:1]) == (0, 1, "{")
    with pytest.raises(ValueError, match="there is nothing to go on with"):
        dialogue.split_personas(split, params, checked, quarantine)
