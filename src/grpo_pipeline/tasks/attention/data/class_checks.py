"""Check that the label rule leaves each class a row."""

import logging
from collections.abc import Sequence

from grpo_pipeline.tasks.attention.data.cell_values import canonical_value
from grpo_pipeline.tasks.attention.data.image_folder import ImageFolder
from grpo_pipeline.tasks.attention.data.label_params import BETWEEN_FINDINGS
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.rows import Row
from grpo_pipeline.tasks.attention.data.splits_file import SHOWN

logger = logging.getLogger(__name__)


def check_classes(raw: ImageFolder, rows: Sequence[Row], params: DataParams) -> None:
    """Refuse labels that leave a class without a row; log listed values that no row has, which may be misspelt.

    Args:
        raw: the data root; its label column is that of all rows.
        rows: those that can be used.
        params: with the label rule.

    Raises:
        ValueError: naming the class, its rule and the values that are there.
    """
    label, held = params.label, set(raw.manifest[params.columns.label])
    there = sorted(held - {""})
    shown = f"{there[: 2 * SHOWN]}" + (
        f" and {len(there) - 2 * SHOWN} more" * (len(there) > 2 * SHOWN)
    )
    cells = [cell.split(BETWEEN_FINDINGS) if label.several else [cell] for cell in held]
    known = {canonical_value(part) for parts in cells for part in parts}
    # Name of each class, whether the usable rows have it, and its cells.
    kinds: list[tuple[str, bool, tuple[str, ...] | None]] = [
        ("positive", any(row["label"] == 1 for row in rows), label.positive),
        ("negative", any(row["label"] == 0 for row in rows), label.negative),
    ]
    if label.classes is not None and (scheme := label.scheme) is not None:
        kinds = [
            (
                f"classes.{name}",
                any(scheme.is_of(row[scheme.column], number) for row in rows),
                values,
            )
            for number, (name, values) in enumerate(label.classes.items())
        ]
        kinds += [("none", True, label.none)] * label.several
    for name, is_there, listed in kinds:
        rule = f"above {label.above:g}" if label.above is not None else listed
        if not is_there:
            raise ValueError(
                f"attention.data.label must leave each class a row, got no usable {name} one ({rule or 'any other value'}) while "
                f"column {params.columns.label!r} holds {shown}; correct the rule or add such rows to {raw.manifest_path}"
            )
        if absent := [cell for cell in listed or () if canonical_value(cell) not in known]:
            logger.warning(
                "attention.data.label.%s names %s, which no row has: column %r holds %s",
                *(name, absent, params.columns.label, shown),
            )
