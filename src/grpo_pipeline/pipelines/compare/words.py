"""Names that a comparison gives to the baselines of an arm, by task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Words:
    """Words of a task.

    Attributes:
        rule: what a rule chooses, above the column of the rules.
        others: heading of the second table.
        caption: of the second table.
        explained: what its rows are, before the rules are named.
        choices: rule -> how it chooses.
        clusters: what is resampled as a whole.
    """

    rule: str
    others: str
    caption: str
    explained: str
    choices: Mapping[str, str]
    clusters: str

    def explanation(self, rules: Iterable[str]) -> str:
        """Return what the rows of these rules are; a rule that was not measured is not spoken of."""
        named = [f"{rule} ({self.choices[rule]})" if rule in self.choices else rule for rule in dict.fromkeys(rules)]
        return f"{self.explained}: {', '.join(named) or 'none was measured'}."


POINTS = Words(
    rule="points",
    others="Other points",
    caption="Other points with each arm's own decoder",
    explained="The same trained decoders with points from other rules",
    choices={"none": "no points", "uniform": "drawn uniformly", "oracle": "placed by one who knows the lesion"},
    clusters="patient",
)
REPLIES = Words(
    rule="replies",
    others="Other replies",
    caption="Other replies to the same examples",
    explained="Replies of other rules to the same examples",
    choices={
        "greedy": "the likeliest words of the same trained reader",
        "start": "the weights that it began with",
        "constant": "one reply to all, without a model",
    },
    clusters="persona",
)
WORDS = {"attention": POINTS, "dialogue": REPLIES}
