"""Report the counts of the checked data."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from grpo_pipeline.tasks.attention.data.checked_table import number_columns
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.data.core_frames import core_rows
from grpo_pipeline.tasks.attention.data.file_digests import files_digest, manifest_digest
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.table_columns import (
    FINDINGS_COLUMN,
    FRAME_COLUMN,
    SPACING_COLUMN,
)


def data_report(
    raw: ImageFolder,
    checked: pd.DataFrame,
    quarantine: pd.DataFrame,
    *,
    found: Mapping[str, Any],
    params: DataParams,
) -> dict[str, object]:
    """Count rows, cores, classes and masks, as plain JSON values."""
    cores = core_rows(checked)
    return {
        "root": str(raw.root),
        "manifest": raw.manifest_path.name,
        "rows": len(raw.manifest),
        "usable": len(checked),
        "quarantined": len(quarantine),
        "patients": int(checked["patient_id"].nunique()),
        **({"cores": len(cores), "frames": len(checked)} if FRAME_COLUMN in checked else {}),
        "cores_by_label": {
            str(k): int(v) for k, v in cores["label"].value_counts().sort_index().items()
        },
        **(
            {}
            if params.label.scheme is None
            else {"classes": count_classes(cores, params.label.scheme)}
        ),
        **({"findings_per_core": count_findings(cores)} if params.label.several else {}),
        "cores_by_center": {
            str(k): int(v) for k, v in cores["center"].value_counts().sort_index().items()
        },
        "lesion_masks": int(checked["has_lesion_mask"].sum()),
        **(describe_spacing(checked[SPACING_COLUMN]) if SPACING_COLUMN in checked else {}),
        **found,
        "unknown": {name: int(checked[name].isna().sum()) for name in number_columns(params)},
        "imputation": "none: unknown clinical values stay unknown (attention.imputation describes the training split)",
        "digests": {
            "manifest": manifest_digest(raw),
            "files": files_digest(raw, checked, params),
        },
    }


def describe_spacing(spacings: pd.Series) -> dict[str, object]:
    """Describe for how many images the pixel size is known, and the consequence for the others."""
    unknown = int((spacings == "").sum())
    without = "distances are unknown"
    counts: dict[str, object] = {"known": len(spacings) - unknown, "unknown": unknown}
    return {"spacing": counts | ({"without": without} if unknown else {})}


def count_classes(cores: pd.DataFrame, classes: Classes) -> dict[str, dict[str, int]]:
    """Count the cores and patients of each class, with its label."""
    counts = {}
    for number, (name, label) in enumerate(zip(classes.names, classes.is_positive, strict=True)):
        patients = cores.loc[classes.is_of(cores[classes.column], number), "patient_id"]
        counts[name] = {
            "label": int(label),
            "cores": len(patients),
            "patients": int(patients.nunique()),
        }
    return counts


def count_findings(cores: pd.DataFrame) -> dict[str, int]:
    """Count the cores by their number of findings."""
    numbers = cores[FINDINGS_COLUMN].map(int.bit_count)
    return {str(k): int(v) for k, v in numbers.value_counts().sort_index().items()}
