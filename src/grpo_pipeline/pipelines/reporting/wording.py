"""Names that the tables of a report use, by task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """Words of a task.

    Attributes:
        drawn: what an arm's row of the comparison rests on.
        gain: what the gain over the chance rule compares, after "<arm>: ".
        rules: what the other rules are, before the arm's name.
    """

    drawn: str
    gain: str
    rules: str


POINTS = Wording(
    drawn="one set of points per core",
    gain="its points − uniform",
    rules="Other ways to choose the points, with the decoder of",
)
REPLIES = Wording(
    drawn="one sampled reply per example; rewards are means over all sampled replies",
    gain="its replies − the start's",
    rules="Other replies; greedy and policy are those of",
)
MOLECULES = Wording(
    drawn="of every graph that was drawn",
    gain="its molecules − the start's",
    rules="Other molecules; policy is that of",
)
