"""Name the columns of the checked table."""

CANONICAL_COLUMNS = (
    "core_id", "patient_id", "center", "label", "involvement", "grade_group", "image", "region_mask", "bag_mask", "lesion_mask",
    "has_lesion_mask", "row", "split",
)  # fmt: skip
PATHS = ("image", "region_mask", "bag_mask", "lesion_mask")
"""Columns that name files."""
ASKED = PATHS[:3]
"""Those that a trained model reads."""
READER_COLUMN = "reader_score"
"""Score of a person who has read the image: present where a column of the manifest is mapped to it."""
CLASS_COLUMN = "class"
"""Number of the row's class, from 0 in the order as written: present where ``attention.data.label`` has classes."""
FINDINGS_COLUMN = "findings"
"""The row's findings, bit c for the class with number c: in the place of ``class`` where a row may have several."""
FRAME_COLUMN = "frame"
"""Name of a picture inside its core: present where a core may have several, each a row and an example of its own."""
SIZE_COLUMN, SPACING_COLUMN = "stored_size", "spacing_mm"
"""Rows and columns of the image as it is stored, and the distances between them: present where any spacing is known."""
MODEL_SPACING_COLUMNS = ("row_mm", "column_mm")
"""Millimetres per pixel of the square model image."""
