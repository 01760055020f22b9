"""Rewards of molecules as a user would write them."""


def refuses_nitrogen(smiles, references):
    """Score a molecule by the number of its letters, unless it holds nitrogen."""
    return [_letters(text) for text in smiles]


def counts_references(smiles, references):
    """Return how many references each molecule came with."""
    return [float(len(texts)) for texts in references]


def raises(smiles, references):
    """Fail for every molecule."""
    raise KeyError(smiles[0])


def _letters(text):
    if "N" in text:
        raise KeyError(text)
    return float(sum(map(str.isalpha, text)))
