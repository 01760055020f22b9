"""A one-line fault, and how it stands in the files of ``faults/``: a line about it, then what is there and what takes its place.

name | kind | file below src/grpo_pipeline | tests that find it, the first ones first
- text that occurs exactly once in the file
+ what takes its place
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# A flipped sign or direction, a mask that is dropped or turned round, a gradient or memory that is no longer cut off (detach), a
# rounding term left out (epsilon), the wrong axis, an index or bound off by one, the wrong denominator, a stream of random
# numbers that is shared or forgotten (seed), rows of a split or group that they do not belong to (split), another order, another
# scale or weight, a value of another moment (state), and another number for what is missing (missing).
KINDS = (
    "sign", "mask", "detach", "epsilon", "axis", "off_by_one", "denominator",
    "seed", "split", "order", "scale", "state", "missing",
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


def read_faults(path: Path) -> Iterator[Mutation]:
    """Yield the faults of a file.

    Raises:
        ValueError: for a fault that is not three lines.
    """
    for block in path.read_text(encoding="utf-8").strip().split("\n\n"):
        lines = block.split("\n")
        if len(lines) != 3 or not lines[1].startswith("- ") or lines[2][:1] != "+":
            raise ValueError(
                f"a fault must be a line about it, one with - and one with +, got {lines} in {path.name}; correct it"
            )
        name, kind, file, tests = (part.strip() for part in lines[0].split(" | "))
        yield Mutation(name, kind, file, lines[1][2:], lines[2][2:], tuple(tests.split()))
