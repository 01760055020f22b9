"""List the parts that an arm's step has beside those of every step."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from grpo_pipeline.core.objective.algorithm import AlgorithmParams


@dataclass(frozen=True)
class Parts:
    """Which parts a step has; what it does not have is no node of it.

    Attributes:
        resamples: groups whose samples all earn the same are drawn again.
        replays: stored groups stand at some places of a batch.
        corrects: samples of another engine are scored again and weighed.
        credits: each decision is told what it has contributed.
        reads_reference: a reference policy scores the samples.
        pays_kl: the KL to it is paid in the reward.
        reads_values: values at the time of the rollout are read.
        reads_lengths: samples are compared by their lengths, too.
        keeps_uncertain: the decisions of largest entropy teach alone.
        selects: the surrogate treats some decisions otherwise.
        supervised: the loss has a supervised term.
        learns: the policy learns from the samples.
        kl: the loss has the KL to the reference.
        value: the loss has the error of the values.
        bounds_kl: the updates of a batch end where the policy has gone far enough.
        moves_reference: the reference follows the policy.
        steers_entropy: the weight of the entropy follows a target.
    """

    resamples: bool
    replays: bool
    corrects: bool
    credits: bool
    reads_reference: bool
    pays_kl: bool
    reads_values: bool
    reads_lengths: bool
    keeps_uncertain: bool
    selects: bool
    supervised: bool
    learns: bool
    kl: bool
    value: bool
    bounds_kl: bool
    moves_reference: bool
    steers_entropy: bool

    @classmethod
    def of(cls, algorithm: AlgorithmParams) -> "Parts":
        """Return the parts that an arm's parameters ask for."""
        losses, paid = algorithm.losses, algorithm.paid_kl
        clips_values = losses.value is not None and losses.value.clip is not None
        return cls(
            resamples=algorithm.dynamic_sampling is not None,
            replays=algorithm.replay is not None,
            corrects=algorithm.correction is not None,
            credits=algorithm.credits_decisions,
            reads_reference=paid is not None,
            pays_kl=algorithm.kl_in_reward is not None,
            reads_values=algorithm.advantage.baseline == "value" or clips_values,
            reads_lengths=algorithm.advantage.method == "opo",
            keeps_uncertain=losses.policy is not None and losses.policy.top_entropy is not None,
            selects=losses.policy is not None and losses.policy.selects,
            supervised=losses.supervised is not None,
            learns=losses.policy is not None,
            kl=losses.kl is not None,
            value=losses.value is not None,
            bounds_kl=algorithm.target_kl is not None,
            moves_reference=paid is not None and paid.reference.update != "frozen",
            steers_entropy=losses.entropy is not None and losses.entropy.target is not None,
        )


# Of an arm whose parameters are not known, or wrong: the graph then shows every part there is.
ALL = Parts(**{part.name: True for part in fields(Parts)})


def parts_of(algorithm: Mapping[str, Any] | None) -> Parts:
    """Return the parts that a section ``algorithm`` asks for; what is wrong with it is said by the run that reads it."""
    if algorithm is None:
        return ALL
    try:
        return Parts.of(AlgorithmParams.model_validate(algorithm))
    except ValidationError:
        return ALL
