"""Declare the parameters of the molecule task's data: source, allowed classes, splits."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.tasks.molecules.graphs.vocabulary import BondForm
from grpo_pipeline.tasks.params import Section, SplitFractions

Text = Annotated[str, Field(min_length=1)]
Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Names = Annotated[tuple[Text, ...], Field(min_length=1)]


SIZE_LIMIT = 128
"""Heavy atoms of a molecule at most: all graphs are padded to the largest one, and memory grows with its square."""


class GeneratorParams(Section):
    """How molecules are enumerated (docs/molecules/data.md); a pure function of these values.

    Attributes:
        seed: draws the molecules that are kept where there are more than ``per_size``.
        atoms: element -> relative frequency among new atoms; each element has its usual valence.
        min_atoms: heavy atoms of the smallest molecules that are kept; smaller ones are grown on the way.
        max_atoms: heavy atoms of the largest ones.
        per_size: largest number of molecules of each size.
    """

    seed: Annotated[int, Field(ge=0)]
    atoms: Annotated[dict[Text, Weight], Field(min_length=1)]
    min_atoms: Annotated[int, Field(ge=2)]
    max_atoms: Annotated[int, Field(ge=2)]
    per_size: Annotated[int, Field(ge=1)]

    @model_validator(mode="after")
    def _order(self) -> Self:
        if self.max_atoms < self.min_atoms:
            raise ValueError(
                f"max_atoms must be at least min_atoms, {self.min_atoms}, got {self.max_atoms}; widen the range"
            )
        return self


class PlainSource(Section):
    """Molecules without columns.

    Attributes:
        kind: ``generated`` enumerates the data first; ``smiles``, ``csv`` and ``sdf`` read a file.
    """

    kind: Literal["generated", "smiles", "sdf"]


class CsvSource(Section):
    """Molecules of a CSV file.

    Attributes:
        kind: of the source.
        smiles: column of the SMILES.
        name: column of the molecule's name; null if there is none.
    """

    kind: Literal["csv"]
    smiles: Text
    name: Text | None = None


class MoleculeDataParams(Section):
    """How the raw data is read and checked (docs/molecules/data.md).

    Attributes:
        source: what is read.
        root: the data root; it is set through ``molecules_root`` in globals.yml or on the command line.
        bonds: rings with alternating bonds are ``kekulised`` to single and double ones, or keep a class ``aromatic``.
        atoms: the element symbols that are allowed; null allows every one in the data.
        charges: the formal charges that are allowed; null allows every one in the data.
        min_atoms: a smaller molecule, in heavy atoms, is refused.
        max_atoms: a larger one is refused; null takes the largest of the data, at most 128.
        on_bad_row: ``fail`` stops at the end of the checks; ``quarantine`` goes on without the bad rows and lists them.
    """

    source: Annotated[PlainSource | CsvSource, Field(discriminator="kind")]
    root: str
    bonds: BondForm
    atoms: Names | None
    charges: tuple[int, ...] | None
    min_atoms: Annotated[int, Field(ge=1, le=SIZE_LIMIT)]
    max_atoms: Annotated[int, Field(ge=1, le=SIZE_LIMIT)] | None
    on_bad_row: Literal["fail", "quarantine"]

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.max_atoms is not None and self.max_atoms < self.min_atoms:
            raise ValueError(
                f"molecules.data.max_atoms must be at least min_atoms, {self.min_atoms}, got {self.max_atoms}; correct one"
            )
        if self.charges is not None and 0 not in self.charges:
            raise ValueError(
                f"molecules.data.charges must hold 0, got {list(self.charges)}; most atoms are neutral, add it"
            )
        return self


class MoleculeSplitParams(Section):
    """How the molecules are divided.

    Attributes:
        seed: decides the split of each molecule.
        by: the unit that is never divided: a molecule (``smiles``), or all molecules with the same ring system (``scaffold``).
        fractions: shares of the molecules.
    """

    seed: Annotated[int, Field(ge=0)]
    by: Literal["smiles", "scaffold"]
    fractions: SplitFractions
