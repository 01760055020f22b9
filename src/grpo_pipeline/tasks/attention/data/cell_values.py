"""Normalise values of cells, and of the lists of a YAML file that they are compared with."""

from grpo_pipeline.tasks.text_lines import composed


def as_text(value: object) -> object:
    """Write a number or a truth value of a YAML list as a CSV would hold it; other values stay unchanged."""
    return str(value) if isinstance(value, bool | int | float) else value


def canonical_value(text: str) -> str:
    """Normalise a label value for comparison: no case or outer blanks; 1, 1.0 and 01 are equal."""
    folded = composed(text.strip()).casefold()
    try:
        return f"{float(folded):.15g}"
    except ValueError:
        return folded
