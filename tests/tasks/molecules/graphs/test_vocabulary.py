import json

import pytest

from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary, bonds_of, read_vocabulary


def test_a_vocabulary_comes_back_with_neutral_first():
    vocabulary = Vocabulary(("C", "N", "[nH]"), (0, -1, 1), bonds_of("aromatic"), 9)
    assert read_vocabulary(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert vocabulary.form == "aromatic"
    assert Vocabulary(("C",), (0,), BONDS, 9).form == "kekulised"


def test_refuses():
    for changes, message in (
        ({"atoms": ("C", "C")}, "atoms must be classes without repetition, got .*'C', 'C'"),
        ({"atoms": ()}, "atoms must be classes without repetition"),
        ({"atoms": ("c",)}, "atoms must be element symbols .* got .*'c'"),
        ({"charges": (1, 0)}, r"charges must begin with 0, got \[1, 0\]"),
        ({"bonds": BONDS[::-1]}, "bonds must be .*'none', 'single'"),
        ({"max_atoms": 0}, "max_atoms must be at least 1, got 0"),
    ):
        with pytest.raises(ValueError, match=message):
            Vocabulary(**{"atoms": ("C",), "charges": (0,), "bonds": BONDS, "max_atoms": 9} | changes)
