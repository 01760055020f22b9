"""What a comparison calls the other rules of an arm, by task."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """Words of a task.

    Attributes:
        rule: what a rule chooses, above the column of the rules.
        others: heading of the second table.
        caption: of the second table.
        explained: what its rows are.
        clusters: what is resampled as a whole.
    """

    rule: str
    others: str
    caption: str
    explained: str
    clusters: str


POINTS = Words(
    rule="points",
    others="Other points",
    caption="Other points with each arm's own decoder",
    explained=(
        "The same trained decoders with points from other rules: without any, drawn uniformly, or placed by an oracle that "
        "knows the lesion."
    ),
    clusters="patient",
)
REPLIES = Words(
    rule="replies",
    others="Other replies",
    caption="Other replies to the same examples",
    explained=(
        "Replies of other rules: greedy ones of the same trained reader, those of the weights that it began with, and replies "
        "that need no model."
    ),
    clusters="persona",
)
WORDS = {"attention": POINTS, "dialogue": REPLIES}
