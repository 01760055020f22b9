"""Write the findings of a reward audit as sentences that name the policy or component, the figures and their meaning."""

from collections.abc import Iterator, Mapping
from typing import Any

from grpo_pipeline.statistics.wording import few_clusters_sentences, side_of, tone_of

Document = Mapping[str, Any]

Entry = Mapping[str, Any]

# Thresholds from which a finding is a warning.
TIED_GROUPS = 0.5
"""Share of the start policy's groups whose samples tie."""
CONSTANT_GROUPS = 0.95
"""Share of its groups within which a weighted part is constant."""
EXPLAINED_SHARE = 0.01
"""Share of the variance within groups that a weighted part explains."""
DISAGREEMENT = 0.1
"""Rank correlation of reward and metric in the wrong direction."""


def find_warnings(document: Document) -> list[str]:
    """List the warnings of a document, those about the whole reward first.

    Warnings that need an interval (``side_of``) are left out if there are too few clusters; the first sentence then states that.
    """
    finders = (_few, _unscored, _trivial, _ceilings, _ties, _parts, _disagreements)
    return [sentence for find in finders for sentence in find(document)]


def _few(document: Document) -> Iterator[str]:
    for sentence in few_clusters_sentences(document["n"], "scored"):
        yield sentence.rstrip(".")


def _unscored(document: Document) -> Iterator[str]:
    for name, policy in document["policies"].items():
        if policy["not_scored"]:
            total = policy["samples"] * document["n"]["examples"]
            yield f"{policy['not_scored']} of {total} samples of {name} could not be scored: they are in no figure"


def _trivial(document: Document) -> Iterator[str]:
    """List the trivial policies whose reward exceeds the start's, and the metrics by which they are worse."""
    start = document["start"]
    for name, policy in document["policies"].items():
        if policy["role"] != "trivial" or side_of(policy["more_than_start"]) != 1:
            continue
        share = way_to_ceiling(document, name)
        way = "" if share is None else f", {share:.0%} of the way to the ceiling"
        worse = [
            metric
            for metric, gap in policy["metrics_more_than_start"].items()
            if _is_worse(document, metric, gap)
        ]
        but = f", and worse by {', '.join(worse)}" if worse else ""
        yield (
            f"a trivial policy ({name}) is paid {_value(policy['reward'])}, {_start(document)} "
            f"{_value(document['policies'][start]['reward'])} (difference {_signed(policy['more_than_start'])}{way}){but}: "
            "the reward can be raised without learning the task"
        )


def find_no_ceiling(document: Document) -> list[str]:
    """Write a sentence for each policy that knows the answer but is not shown to get more reward than the start.

    Where there is no interval the difference itself decides: too few clusters are no reason to stop.
    """
    start, found = document["policies"][document["start"]], []
    for name, policy in document["policies"].items():
        gap = policy["more_than_start"]
        if policy["role"] != "ceiling" or _is_above(gap):
            continue
        if gap["value"] is None:
            lost = policy["not_scored"]
            said = f"could not be compared with {_start(document)}: {lost} of its samples have no reward"
        else:
            less = "less" if side_of(gap) == -1 else "not shown to be more"
            said = (
                f"is paid {_value(policy['reward'])}, {less} than {_start(document)} {_value(start['reward'])} "
                f"(difference {_signed(gap)}): nothing shows that the reward asks for what is wanted"
            )
        found.append(f"the ceiling ({name}) {said}")
    return found


def _ceilings(document: Document) -> Iterator[str]:
    yield from find_no_ceiling(document)


def _ties(document: Document) -> Iterator[str]:
    tied = _start_groups(document)["tied"]
    if tied == 1.0:
        yield f"the reward is dead: the samples of {document['start']} tie in every group, and the advantages are all 0"
    elif tied >= TIED_GROUPS:
        yield f"{tied:.0%} of the groups of {document['start']} tie: they teach nothing"


def _parts(document: Document) -> Iterator[str]:
    """Write which weighted components are constant within groups, explain nothing, or act against the rest."""
    if _start_groups(document)["tied"] == 1.0:
        return
    for name, component in _start_groups(document)["components"].items():
        explained = component["explained"]["value"]
        if not component["weight"]:
            continue
        if component["constant"] >= CONSTANT_GROUPS:
            where = (
                ""
                if component["constant"] == 1.0
                else f" in {component['constant']:.0%} of the groups"
            )
            yield f"component {name} is constant within groups{where}: it teaches nothing there, whatever its weight"
        elif (
            explained is not None
            and explained < -EXPLAINED_SHARE
            and side_of(component["explained"]) == -1
        ):
            yield (
                f"component {name} pulls against the others within groups "
                f"(share of the variance {_signed(component['explained'])})"
            )
        elif explained is not None and abs(explained) < EXPLAINED_SHARE:
            yield f"component {name} explains {explained:.1%} of the variance within groups: its weight hardly matters"


def _disagreements(document: Document) -> Iterator[str]:
    """Name the metrics that fall, inside the start's groups, where the reward rises: by rank, and beyond chance."""
    for metric, found in document["agreement"][document["start"]]["reward"].items():
        rho = found["within"]["spearman"]
        better = document["metrics"][metric]
        if _is_worse(document, metric, rho) and abs(rho["value"]) >= DISAGREEMENT:
            yield (
                f"reward and {metric} disagree within groups: rho = {_signed(rho)} over {rho['n']} groups, where {better} "
                f"{metric} is better"
            )


def way_to_ceiling(document: Document, policy: str) -> float | None:
    """Compute (reward - start) / (ceiling - start), for the highest ceiling; None if no ceiling exceeds the start."""
    policies = document["policies"]
    gains = [p["more_than_start"]["value"] for p in policies.values() if p["role"] == "ceiling"]
    highest = max((gain for gain in gains if gain is not None), default=0.0)
    gain = policies[policy]["more_than_start"]["value"]
    return None if highest <= 0 or gain is None else gain / highest


def _is_above(gap: Entry) -> bool:
    """Check whether a difference is shown to be above 0; without an interval its value decides."""
    side = side_of(gap)
    return side == 1 if side is not None else bool((gap["value"] or 0.0) > 0)


def _is_worse(document: Document, metric: str, gap: Entry) -> bool:
    return tone_of(gap, document["metrics"][metric]) == "worse"


def _start(document: Document) -> str:
    name = document["start"]
    return "the start" if name == "start" else f"the start ({name})"


def _start_groups(document: Document) -> Mapping[str, Any]:
    groups: Mapping[str, Any] = document["policies"][document["start"]]["groups"]
    return groups


def _value(entry: Entry) -> str:
    return "nothing" if entry["value"] is None else f"{entry['value']:.3f}"


def _signed(entry: Entry) -> str:
    if entry["value"] is None:
        return str(entry["reason"])
    return f"{entry['value']:+.3f}" + (
        f", {entry['reason']}"
        if entry["ci95"] is None
        else " [{:+.3f}, {:+.3f}]".format(*entry["ci95"])
    )
