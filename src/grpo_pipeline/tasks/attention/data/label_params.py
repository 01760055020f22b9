"""Declare the meaning of the values of a label column."""

from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from grpo_pipeline.tasks.attention.data.cell_values import as_text, canonical_value
from grpo_pipeline.tasks.attention.data.classes import NO_CLASS_NAMES, Classes, ClassName

BETWEEN_FINDINGS = ";"
"""Between the values of a cell that names several findings."""
MOST_FINDINGS = 53
"""A float64 holds so many bits exactly: a table that is read back as numbers loses none."""
LabelValue = Annotated[str, BeforeValidator(as_text)]


class LabelParams(BaseModel):
    """The values of the label column that mean cancer: those of a list or of some classes, or numbers above a limit.

    Attributes:
        positive: values with label 1, with ``classes`` their names; null with ``above``.
        negative: values with label 0, every other value being an error; null = every other value has label 0.
        above: numbers above this have label 1, other numbers label 0; null with ``positive``.
        classes: name -> values of that class, ``{normal: [0], benign: [1], malignant: [2]}``. The model tells them apart; the
            ``positive`` classes have label 1. null = two classes, by the lists or the limit.
        ordinal: whether the classes are grades, written from the lowest to the highest (cumulative logits, one for each step).
        several: whether the classes are findings, of which a row may have several, ``cyst; calcified``, or none. Rows with any
            ``positive`` finding have label 1.
        none: values of rows without findings; null = every row has a finding.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    positive: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None
    negative: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None
    above: Annotated[float, Field(allow_inf_nan=False)] | None = None
    classes: dict[ClassName, Annotated[tuple[LabelValue, ...], Field(min_length=1)]] | None = None
    ordinal: bool = False
    several: bool = Field(default=False, exclude_if=lambda is_on: not is_on)
    none: Annotated[tuple[LabelValue, ...], Field(min_length=1)] | None = Field(
        default=None, exclude_if=lambda values: values is None
    )

    @property
    def scheme(self) -> Classes | None:
        """Build the classes that a model tells apart; None if there is a label alone."""
        if self.classes is None:
            return None
        return Classes(
            names=tuple(self.classes),
            positive=self.positive or (),
            ordinal=self.ordinal,
            several=self.several,
        )

    @model_validator(mode="after")
    def _classes_are_sound(self) -> Self:
        if self.classes is None:
            if self.ordinal:
                raise ValueError(
                    "attention.data.label.ordinal must be false without classes, got true; name the grades in label.classes"
                )
            if self.several:
                raise ValueError(
                    "attention.data.label.several must be false without classes, got true; name the findings in label.classes"
                )
            return self
        names, positive = list(self.classes), self.positive or ()
        where, values = (
            "attention.data.label",
            [*map(canonical_value, sum(self.classes.values(), ()))],
        )
        if self.several:  # a value may mean several findings, each of them once
            lists = [list(map(canonical_value, of_one)) for of_one in self.classes.values()]
            twice = sorted({value for one in lists for value in one if one.count(value) > 1})
        else:
            twice = sorted({value for value in values if values.count(value) > 1})
        of_highest = names[len(names) - len(positive) :]
        for is_broken, rule in (
            (
                self.ordinal and self.several,
                f"{where}.several must be false with ordinal: true, got true for both; an image has one grade: set one of them",
            ),
            (
                len(names) < 2,
                f"{where}.classes must name at least two classes, got {names}; add one",
            ),
            (
                bool(set(names) & NO_CLASS_NAMES),
                f"{where}.classes must not be named {sorted(NO_CLASS_NAMES)}, got {names}; rename it",
            ),
            (
                bool(twice),
                f"{where}.classes must list a value once, got {twice} twice; drop one, since a row has one class",
            ),
            (
                not positive
                or not set(positive) <= set(names)
                or (set(positive) == set(names) and not self.several),
                f"{where}.positive must name some of the classes {names}, not all, got {list(positive)}; correct it",
            ),
            (
                self.negative is not None or self.above is not None,
                f"{where} must have negative and above null with classes, got negative: {self.negative} and above: "
                f"{self.above}; set both to null: the classes that are not positive are negative",
            ),
            (
                self.ordinal and set(positive) != set(of_highest),
                f"{where}.positive must be the highest grades with ordinal: true, such as {of_highest}, got {list(positive)}; "
                "write the classes from the lowest to the highest",
            ),
        ):
            if is_broken:
                raise ValueError(rule)
        return self

    @model_validator(mode="after")
    def _findings_are_sound(self) -> Self:
        where, none = "attention.data.label", [*map(canonical_value, self.none or ())]
        if not self.several:
            if self.none is not None:
                raise ValueError(
                    f"{where}.none must be null without several: true, got {list(self.none)}; a class of its own says it"
                )
            return self
        names, values = (
            list(self.classes or ()),
            [*map(canonical_value, sum((self.classes or {}).values(), ()))],
        )
        both = sorted(set(none) & set(values))
        joined = [value for value in (*values, *none) if BETWEEN_FINDINGS in value]
        for is_broken, rule in (
            (
                len(names) > MOST_FINDINGS,
                f"{where}.classes must name at most {MOST_FINDINGS} findings with several: true, got {len(names)}; drop some",
            ),
            (
                bool(both),
                f"{where}.none must list no value of a finding, got {both} as both; drop one",
            ),
            (
                bool(joined),
                f"{where} must list values without {BETWEEN_FINDINGS!r} with several: true, got {joined}; a cell is "
                "divided there: list its parts",
            ),
            (
                set(self.positive or ()) == set(names) and not none,
                f"{where}.none must list the values that mean no finding where all of them are positive, got null; no row would "
                "have label 0",
            ),
        ):
            if is_broken:
                raise ValueError(rule)
        return self

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        lists = [name for name in ("positive", "negative") if getattr(self, name) is not None]
        if self.above is not None and lists:
            raise ValueError(
                f"attention.data.label must have {' and '.join(lists)} null with above: {self.above:g}, got a list; set one rule"
            )
        if self.above is None and self.positive is None:
            raise ValueError(
                "attention.data.label must have positive or above, got null for both; say which values mean cancer"
            )
        return self

    @model_validator(mode="after")
    def _values_are_disjoint(self) -> Self:
        if self.positive is None:
            return self
        both = sorted(
            set(map(canonical_value, self.positive))
            & set(map(canonical_value, self.negative or ()))
        )
        if both:
            raise ValueError(
                f"attention.data.label must list a value as positive or negative, got {both} as both; drop one"
            )
        return self
