"""Declare the classes or findings that a model tells apart."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from grpo_pipeline.tasks.attention.data.cell_values import as_text
from grpo_pipeline.tasks.attention.data.table_columns import CLASS_COLUMN, FINDINGS_COLUMN

NO_CLASS_NAMES = frozenset({"mean", "std", "shift", "calibrated"})
"""Not names of classes: ``prob_<name>`` is another column."""
ClassName = Annotated[
    str, BeforeValidator(as_text), Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=40)
]


class Classes(BaseModel):
    """The classes of a model, stored with it.

    Attributes:
        names: in the order as written; a class is known by its number in it.
        positive: those with label 1.
        ordinal: whether the order is one of severity; the positive ones are then the last.
        several: whether an image may have several of them, or none: findings.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[ClassName, ...]
    positive: tuple[ClassName, ...]
    ordinal: bool = False
    several: bool = Field(default=False, exclude_if=lambda is_on: not is_on)

    @property
    def is_positive(self) -> tuple[bool, ...]:
        """List whether each class has label 1."""
        return tuple(name in self.positive for name in self.names)

    @property
    def column(self) -> str:
        """Name the column of a table that holds the class of a row, or its findings."""
        return FINDINGS_COLUMN if self.several else CLASS_COLUMN

    def is_of(self, value: Any, number: int) -> Any:
        """Check whether a value of that column means the class with this number, for an integer, an array or a column."""
        return (value & (1 << number)) > 0 if self.several else value == number

    def label_of(self, value: int) -> int:
        """Find the label of a value of that column: 1 for a positive class."""
        positive = [number for number, label in enumerate(self.is_positive) if label]
        return int(any(self.is_of(value, number) for number in positive))
