"""Write the environment of images that are described by columns."""

from collections.abc import Mapping, Sequence

from grpo_pipeline.tasks.attention.guessing.positive_values import positive_values
from grpo_pipeline.tasks.new_data import Found, Hints, flow, line

# Key of ``attention.data.columns`` -> what the environment says of it.
MEANINGS = {
    "image": "files of images",
    "region_mask": "where points may fall; null: anywhere",
    "bag_mask": "where the label is known; null: the region",
    "lesion_mask": "outlines, for evaluation alone; null: unknown",
    "label": "what is to be told from an image",
    "involvement": "share of the image that is positive; null: unknown",
    "grade_group": "null: unknown",
    "patient_id": "never divided between splits",
    "center": "null: one center",
    "core_id": "null: file name of the image",
    "split": "train, val, test; null: drawn by attention.split",
}


def describe(
    columns: Mapping[str, str | None],
    folders: Mapping[str, str],
    values: Sequence[str],
    hints: Hints,
    *,
    note: str,
    manifest: str,
    numeric: Sequence[str],
) -> Found:
    """Write the parameters of a description, with a comment at every guess."""
    positive = positive_values(values, hints)
    negative = [value for value in values if value not in positive]
    patient = columns.get("patient_id")
    notes = [
        note,
        f"label: {columns['label']}, positive {', '.join(positive)}; negative {', '.join(negative)}",
    ]
    if patient is None:
        notes.append(
            "no column of patients: every image counts as a patient of its own. Where one has several images, name the column, "
            "--column patient_id=<column>, or the same patient may be in training and test"
        )
    used = {**columns, "patient_id": patient or columns["image"]}
    lines = [
        "attention:",
        "  data:",
        "    source: manifest",
        line("    columns:", "key: column of your table; docs/attention/data.md"),
        *(line(f"      {key}: {flow(used.get(key))}", MEANINGS[key]) for key in MEANINGS),
        line("      clinical: []", _clinical(numeric)),
    ]
    if any(folders.values()):
        lines.append(line("    folders:", "put before the cells"))
        lines += [f"      {key}: {flow(place)}" for key, place in folders.items()]
    lines += [
        "    label:",
        line(f"      positive: {flow(positive)}", "cells that mean label 1"),
        f"      negative: {flow(negative)}",
        line(
            "    on_bad_row: quarantine", "a bad row is listed and left out; fail: it stops the run"
        ),
    ]
    text = "\n".join(lines) + "\n"
    return Found("attention", {"attention_manifest": manifest}, text, tuple(notes))


def _clinical(numeric: Sequence[str]) -> str:
    if not numeric:
        return "no column of numbers"
    return f"numbers; name those that are known before the diagnosis: {', '.join(numeric)}"
