"""Group the examples that share a persona, directly or through others: connected components of links."""

from collections.abc import Iterable

import numpy as np


def group_names(links: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Map name -> the alphabetically first name of all that are linked to it.

    Args:
        links: pairs of names that belong together; a name alone is linked to itself. Their order does not matter.
    """
    from scipy.sparse import coo_array  # the parameters of the data are read without scipy
    from scipy.sparse.csgraph import connected_components

    pairs = sorted(set(links))
    names = sorted({name for pair in pairs for name in pair})
    place = {name: index for index, name in enumerate(names)}
    first, second = (
        np.array([place[pair[end]] for pair in pairs], dtype=np.int64) for end in (0, 1)
    )
    graph = coo_array((np.ones(len(pairs)), (first, second)), shape=(len(names), len(names)))
    labels = (
        connected_components(graph, directed=False)[1] if names else np.empty(0, dtype=np.int64)
    )
    leader: dict[int, str] = {}
    return {
        name: leader.setdefault(int(label), name) for name, label in zip(names, labels, strict=True)
    }


def persona_key(persona: str) -> str:
    """Normalise a persona for comparison: its words in alphabetical order, without case.

    Data sets hold the same sentences in another order; that is the same persona.
    """
    return " ".join(sorted(persona.casefold().split()))
