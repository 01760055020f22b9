"""What a one-line fault is."""

from dataclasses import dataclass

# A flipped sign or direction, a mask that is dropped or turned round, a gradient or memory that is no longer cut off (detach), a
# rounding term left out (epsilon), the wrong axis, an index or bound off by one, the wrong denominator, a stream of random numbers
# that is shared or forgotten (seed), rows of a split or group that they do not belong to (split), another order, another scale or
# weight, a value of another moment (state), and another number for what is missing (missing).
KINDS = (
    "sign", "mask", "detach", "epsilon", "axis", "off_by_one", "denominator", "seed", "split", "order", "scale", "state", "missing",
)  # fmt: skip


@dataclass(frozen=True)
class Mutation:
    """One fault.

    Attributes:
        name: what is wrong, in a few words; unique.
        kind: one of ``KINDS``.
        file: below src/grpo_pipeline.
        old: text that occurs exactly once in the file.
        new: what takes its place.
        tests: paths below tests/, with or without a test's name; one of them must fail.
    """

    name: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied(self, text: str) -> str:
        """Return the text of the file with the fault in it.

        Raises:
            ValueError: unless ``old`` occurs exactly once.
        """
        if (found := text.count(self.old)) != 1:
            raise ValueError(
                f"the text of mutation {self.name} must occur once in {self.file}, got {found} times; correct the table"
            )
        return text.replace(self.old, self.new)


def faults(*rows: tuple[str, ...]) -> tuple[Mutation, ...]:
    """Return faults of rows (name, kind, file, old, new, test, ...)."""
    return tuple(Mutation(*row[:5], tests=row[5:]) for row in rows)
