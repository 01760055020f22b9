import json

import pytest

from grpo_pipeline.tasks.molecules.graphs.vocabulary import BONDS, Vocabulary, bonds_of, read_vocabulary


def test_a_vocabulary_comes_back_with_neutral_first():
    vocabulary = Vocabulary(("C", "N", "[nH]"), (0, -1, 1), bonds_of("aromatic"), 9)
    assert read_vocabulary(json.loads(json.dumps(vocabulary.to_json()))) == vocabulary
    assert vocabulary.form == "aromatic"
    assert Vocabulary(("C",), (0,), BONDS, 9).form == "kekulised"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((("C", "C"), (0,), BONDS, 9), "atoms must be classes without repetition, got .*'C', 'C'"),
        (((), (0,), BONDS, 9), "atoms must be classes without repetition"),
        ((("c",), (0,), BONDS, 9), "atoms must be element symbols .* got .*'c'"),
        ((("C",), (1, 0), BONDS, 9), r"charges must begin with 0, got \[1, 0\]"),
        ((("C",), (0,), BONDS[::-1], 9), "bonds must be .*'none', 'single'"),
        ((("C",), (0,), BONDS, 0), "max_atoms must be at least 1, got 0"),
    ],
)
def test_refuses(fields, message):
    with pytest.raises(ValueError, match=message):
        Vocabulary(*fields)
