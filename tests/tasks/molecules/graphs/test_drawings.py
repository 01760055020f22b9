import xml.etree.ElementTree as ElementTree

import numpy as np
import pandas as pd
import torch

from grpo_pipeline.tasks.frames import text_tensor
from grpo_pipeline.tasks.molecules.graphs.drawings import best_molecules, draw_frames, draw_grid, random_molecules

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


def test_frames_of_a_training_are_grids_with_a_word_where_there_is_no_molecule():
    said = [["CCO", "", "c1ccccc1", "CC#N"], ["CCO", "CCN", "", "CC#N"]]
    frames = {
        "step": np.array([0, 40]),
        "smiles": np.stack([text_tensor(smiles).numpy() for smiles in said]),
        "cause": np.stack([text_tensor(["in 2 parts"] * 4).numpy()] * 2),
        "reward": np.array([[0.5, 0.0, 1.0, 0.25], [0.5, 0.75, 0.0, 0.25]]),
    }
    first, second = draw_frames(frames, arm="grpo")
    assert first.shape == second.shape == (2 * 180, 3 * 220, 3)  # four panels in rows of three
    assert first.dtype == np.uint8
    panels = [[drawn[180 * (i // 3) :][:180, 220 * (i % 3) :][:, :220] for i in range(4)] for drawn in (first, second)]
    assert [np.array_equal(*pair) for pair in zip(*panels, strict=True)] == [True, False, False, True]
    np.testing.assert_array_equal(panels[0][1], panels[1][2])  # not valid, in 2 parts
    assert (panels[0][1] < 128).any(axis=2).sum() > 50
    assert (first[180:, 220:] == 255).all()  # the fifth and the sixth panel
