"""Draw generated molecules as a grid in SVG, and those of a training's frames as pictures."""

import io
import math
from collections.abc import Hashable, Mapping
from xml.sax.saxutils import escape

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageDraw
from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D

from grpo_pipeline.tasks.frames import frame_table
from grpo_pipeline.tasks.molecules.data.examples import MoleculeExamples

NUMBERS = {"reward": "reward", "qed": "QED", "logp": "logP", "sa": "SA"}
MAX_LEGEND = 44
PANEL = (220, 180)  # width and height in pixels
LINE, BOND = 18, 30  # pixels
# Element -> (red, green, blue): RDKit's own colours are too faint on white to be read.
LEGIBLE = {
    7: (0.1, 0.1, 0.9),
    8: (0.8, 0.0, 0.0),
    9: (0.05, 0.45, 0.3),
    15: (0.65, 0.35, 0.0),
    16: (0.5, 0.42, 0.0),
    17: (0.0, 0.45, 0.0),
    35: (0.5, 0.3, 0.1),
    53: (0.45, 0.0, 0.55),
}


def best_molecules(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the rows of the different valid molecules with the highest rewards, best first; ties by text.

    Args:
        rows: with ``smiles`` ("" if not valid) and ``reward``.
        count: of rows at most.
    """
    valid = rows[(rows["smiles"] != "") & rows["reward"].notna()]
    ranked = valid.sort_values(["reward", "smiles"], ascending=[False, True], kind="stable")
    return ranked.drop_duplicates("smiles").head(count)


def random_molecules(rows: pd.DataFrame, count: int, *, generator: torch.Generator) -> pd.DataFrame:
    """Draw rows by chance, without repetition, in the order of the draw; invalid molecules may be among them."""
    return rows.iloc[torch.randperm(len(rows), generator=generator)[:count].numpy()]


def draw_grid(rows: pd.DataFrame, *, columns: int, panel: tuple[int, int] = PANEL) -> str:
    """Draw a molecule per row of the table in a single SVG, from left to right, then down.

    Below each molecule stand its reward and properties, as far as the columns exist. An invalid molecule has an empty panel with
    that word, and the reason if there is a column ``cause``. The same table gives the same text.

    Args:
        rows: table with ``smiles``; may be empty.
        columns: number of panels side by side.
        panel: width and height of a panel, in pixels.

    Raises:
        ValueError: if ``columns`` is below 1.
    """
    if columns < 1:
        raise ValueError(
            f"columns must be at least 1, got {columns}; say how many panels stand beside each other"
        )
    width, height = panel
    records = rows.to_dict(orient="records")
    panels = [
        _panel(record, corner=(place % columns * width, place // columns * height), panel=panel)
        for place, record in enumerate(records)
    ] or [_text("no molecule", (width / 2, height / 2))]
    across, down = min(columns, len(panels)) * width, math.ceil(len(panels) / columns) * height
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{across}px" height="{down}px" viewBox="0 0 {across} {down}">'
    return "\n".join([head, *panels, "</svg>\n"])


def draw_examples(examples: MoleculeExamples, rows: np.ndarray) -> bytes:
    """Draw these molecules of the data as SVG, in short lines for phones; below each its properties."""
    return draw_grid(examples.table.iloc[rows], columns=min(FRAME_COLUMNS, len(rows))).encode()


FRAME_COLUMNS, CUT = 3, 34  # letters of the small font that fit


def draw_frames(frames: Mapping[str, np.ndarray], *, arm: str) -> list[np.ndarray]:
    """Draw the molecules of each frame of a training as a grid of pixels, uint8 [H, W, 3], the reward below each.

    Args:
        frames: ``step`` [f] and the arrays of ``Task.training_frame``, stacked [f, m, ...].
        arm: of the training; no picture names it.
    """
    del arm
    return [_draw_frame(rows) for _, rows in frame_table(frames).groupby("step")]


def _draw_frame(rows: pd.DataFrame) -> np.ndarray:
    down, (width, height) = math.ceil(len(rows) / FRAME_COLUMNS), PANEL
    canvas = rdMolDraw2D.MolDraw2DCairo(FRAME_COLUMNS * width, down * height, width, height)
    canvas.drawOptions().updateAtomPalette(LEGIBLE)
    canvas.drawOptions().fixedBondLength = BOND
    with rdBase.BlockLogs():
        molecules = [Chem.MolFromSmiles(smiles) or Chem.Mol() for smiles in rows["smiles"]]
    canvas.DrawMolecules(molecules, legends=[f"reward {reward:.2f}" for reward in rows["reward"]])
    canvas.FinishDrawing()
    with Image.open(io.BytesIO(canvas.GetDrawingText())) as file:
        picture = file.convert("RGB")
    pen = ImageDraw.Draw(picture)
    for place, (smiles, cause) in enumerate(zip(rows["smiles"], rows["cause"], strict=True)):
        if not smiles:  # RDKit leaves the panel empty, its legend, too
            middle = (place % FRAME_COLUMNS + 0.5) * width, (place // FRAME_COLUMNS + 0.5) * height
            pen.text(middle, f"not valid\n{cause[:CUT]}", "black", anchor="mm", align="center")
    return np.asarray(picture)


def _panel(
    record: Mapping[Hashable, object], *, corner: tuple[int, int], panel: tuple[int, int]
) -> str:
    """Draw a molecule at its place, its legend below."""
    (left, top), (width, height) = corner, panel
    with rdBase.BlockLogs():
        molecule = Chem.MolFromSmiles(str(record["smiles"] or ""))
    middle = left + width / 2
    if molecule is None or not molecule.GetNumAtoms():
        words = ("not valid", _cut(str(record.get("cause") or "")))
        return "\n".join(
            _text(line, (middle, top + height / 2 + LINE * place))
            for place, line in enumerate(words)
            if line
        )
    # Letters as text: RDKit's own glyphs would be paths, which cannot be searched or copied.
    canvas = rdMolDraw2D.MolDraw2DSVG(width, height - LINE, noFreetype=True)
    canvas.drawOptions().clearBackground = False
    canvas.drawOptions().updateAtomPalette(LEGIBLE)
    canvas.drawOptions().fixedBondLength = (
        BOND  # else two atoms fill a panel; a large molecule is still made smaller
    )
    rdMolDraw2D.PrepareAndDrawMolecule(canvas, molecule)
    canvas.FinishDrawing()
    drawing = str(canvas.GetDrawingText())
    nested = (
        drawing[drawing.index("<svg") :].replace("<svg", f'<svg x="{left}" y="{top}"', 1).strip()
    )
    legend = _cut(", ".join(f"{label} {value:.2f}" for label, value in _numbers(record)))
    return f"{nested}\n{_text(legend, (middle, top + height - LINE / 3))}"


def _text(words: str, place: tuple[float, float]) -> str:
    x, y = place
    style = 'text-anchor="middle" font-family="sans-serif" font-size="11"'
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def _numbers(record: Mapping[Hashable, object]) -> list[tuple[str, float]]:
    found = [(label, record.get(name)) for name, label in NUMBERS.items()]
    return [
        (label, float(value))
        for label, value in found
        if isinstance(value, (int, float)) and np.isfinite(value)
    ]


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LEGEND else f"{text[: MAX_LEGEND - 1]}…"
