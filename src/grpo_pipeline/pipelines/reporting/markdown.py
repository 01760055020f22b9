"""Write tables as Markdown."""

from collections.abc import Sequence

from grpo_pipeline.pipelines.reporting.tables import Cell, Table


def columns(table: Table, heads: Sequence[str]) -> Table:
    """Return the named columns of a table."""
    places = [table.heads.index(head) for head in heads]
    return Table(
        table.caption, list(heads), [[row[place] for place in places] for row in table.rows]
    )


def markdown(table: Table) -> str:
    """Return a table with columns of even width."""
    lines = [table.heads] + [[cell_text(cell) for cell in row] for row in table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.heads))]
    drawn = [
        "| "
        + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([f"**{table.caption}**", "", drawn[0], rule, *drawn[1:]])


def cell_text(cell: Cell) -> str:
    """Write value and interval on one line; reasons for a missing value are left out, because they are too long."""
    if cell.text == "undefined":
        return "-"
    return f"{cell.text} {cell.note}" if holds_interval(cell) else cell.text


def holds_interval(cell: Cell) -> bool:
    """Check whether the note of a cell is an interval, and not a reason or an explanation."""
    return cell.note.startswith("[")
