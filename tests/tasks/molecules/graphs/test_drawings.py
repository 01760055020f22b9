import xml.etree.ElementTree as ElementTree

import pandas as pd
import torch

from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, draw_grid, random_molecules

ROWS = pd.DataFrame(
    {
        "smiles": ["CCO", "", "c1ccccc1", "CCO", "CC#N", "CCN"],
        "cause": ["", "Explicit valence for atom # 1 N, 5, is greater than permitted", "", "", "", ""],
        "reward": [0.5, 0.0, 0.9, 0.7, 0.7, float("nan")],
        "qed": [0.4, float("nan"), 0.44, 0.4, 0.3, 0.2],
    }
)
SVG = "{http://www.w3.org/2000/svg}"


def texts(drawing):
    """Return the words of a drawing, letter by letter as RDKit places its own."""
    return "|".join("".join(element.itertext()) for element in ElementTree.fromstring(drawing).iter(f"{SVG}text"))


def test_the_best_are_different_and_valid_and_random_ones_are_drawn_from_all_rows():
    assert list(best_molecules(ROWS, 10)["smiles"]) == ["c1ccccc1", "CC#N", "CCO"]
    assert list(best_molecules(ROWS, 10)["reward"]) == [0.9, 0.7, 0.7]
    assert list(best_molecules(ROWS, 1)["smiles"]) == ["c1ccccc1"]
    seen = [tuple(random_molecules(ROWS, 3, generator=torch.Generator().manual_seed(seed)).index) for seed in range(200)]
    assert all(len({*rows}) == 3 for rows in seen)
    # Each of 6 rows is among 3 drawn ones with probability 1/2: 100 of 200, give or take 4 deviations of 7.
    assert all(72 <= sum(row in rows for rows in seen) <= 128 for row in range(6))
    assert seen[7] == tuple(random_molecules(ROWS, 3, generator=torch.Generator().manual_seed(7)).index)


def test_a_grid_has_a_panel_per_row():
    drawing = draw_grid(ROWS, columns=4, panel=(100, 80))
    assert drawing.startswith("<svg")
    assert draw_grid(ROWS, columns=4, panel=(100, 80)) == drawing
    root, words = ElementTree.fromstring(drawing), texts(drawing).split("|")
    scored = ("reward 0.50, QED 0.40", "not valid", "reward 0.90, QED 0.44", "reward 0.70, QED 0.40", "reward 0.70, QED 0.30")
    assert [word for word in words if "reward" in word or "QED" in word or "valid" in word] == [*scored, "QED 0.20"]
    assert "Explicit valence for atom # 1 N, 5, is grea…" in words
    assert (root.get("width"), root.get("height")) == ("400px", "160px")  # six panels, four beside each other
    places = [f"{part.get('x')} {part.get('y')}" for part in root.findall(f"{SVG}svg") if part.findall(f"{SVG}path")]
    assert places == ["0 0", "200 0", "300 0", "0 80", "100 80"]
    assert texts(draw_grid(pd.DataFrame({"smiles": [""], "cause": ["a < b & </svg>"]}), columns=1)) == "not valid|a < b & </svg>"
