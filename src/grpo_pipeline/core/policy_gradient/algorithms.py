"""List the policy-gradient algorithms and their options, and refuse combinations that do not work.

An algorithm is a surrogate on a ratio under a reduction, in ``surrogates.py``, ``ratios.py`` and ``reductions.py``.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, get_args

Algorithm = Literal["reinforce", "ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo", "cispo", "sapo"]
RatioLevel = Literal["decision", "joint", "sequence"]
Reduction = Literal["per_sequence", "per_decision", "constant", "per_decision_local"]
T = TypeVar("T")

ALGORITHMS: tuple[str, ...] = get_args(Algorithm)
RATIO_LEVELS: tuple[str, ...] = get_args(RatioLevel)
REDUCTIONS: tuple[str, ...] = get_args(Reduction)

# Three names are the GRPO surrogate under another reduction.
REQUIRED_REDUCTION: Mapping[str, str] = {
    "dr_grpo": "constant",
    "dapo": "per_decision",
    "bnpo": "per_decision_local",
}
CLIPPED = frozenset({"ppo", "grpo", "dr_grpo", "dapo", "bnpo", "gspo"})

WHY_UNBOUNDED = {
    "reinforce": "it has no ratio to bound",
    "cispo": "its ratio is capped by ratio_cap",
    "sapo": "its sigmoid bounds the ratio softly",
}


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """Options that only some algorithms and reductions read; the others ignore them.

    Attributes:
        clip_low: the ratio is clipped below at 1 - clip_low; read by ppo, grpo and its variants, and gspo.
        clip_high: the ratio is clipped above at 1 + clip_high; likewise.
        delta: upper bound on the ratio of the unclipped branch, above 1 + clip_high (INTELLECT-2, arXiv 2505.07291);
            None = unbounded. It matters for A < 0 alone.
        dual_clip: c > 1, for A < 0 the loss is at most c * |A| (arXiv 1912.09729); None = unbounded. For
            c > 1 + clip_high it is ``delta`` under another name.
        ratio_cap: cispo's largest ratio, at least 1; the bound itself, not its distance from 1 (TRL's ``epsilon_high``).
        tau_positive: sapo's temperature where A > 0.
        tau_negative: sapo's temperature elsewhere.
        max_decisions: L_max of the reduction ``constant``; None = the padded length of the batch.

    Raises:
        ValueError: if a value is outside its range, or both delta and dual_clip are given.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    delta: float | None = None
    dual_clip: float | None = None
    ratio_cap: float = 5.0
    tau_positive: float = 1.0
    tau_negative: float = 1.05
    max_decisions: int | None = None

    def __post_init__(self) -> None:
        if not (0.0 <= self.clip_low < math.inf and 0.0 <= self.clip_high < math.inf):
            got = f"{self.clip_low} and {self.clip_high}"
            raise ValueError(
                f"clip_low and clip_high must be at least 0 and finite, got {got}; they are distances from 1"
            )
        _check_upper_bounds(self.delta, self.dual_clip, self.clip_high)
        _check_above(self.tau_positive, 0.0, "tau_positive")
        _check_above(self.tau_negative, 0.0, "tau_negative")
        if not self.ratio_cap >= 1.0:
            raise ValueError(
                f"ratio_cap must be at least 1, got {self.ratio_cap}; below 1 it shrinks every on-policy step"
            )
        if self.max_decisions is not None and self.max_decisions < 1:
            raise ValueError(
                f"max_decisions must be at least 1, got {self.max_decisions}; give the longest sample's length"
            )


def with_clip(options: LossOptions, clip_low: float | None, clip_high: float | None) -> LossOptions:
    """Return the options with those bounds of the ratio replaced that are given."""
    low = options.clip_low if clip_low is None else clip_low
    high = options.clip_high if clip_high is None else clip_high
    return replace(options, clip_low=low, clip_high=high)


def check_combination(
    *,
    algorithm: str,
    ratio_level: str,
    reduction: str,
    delta: float | None,
    dual_clip: float | None,
    update_epochs: int,
    clip_high: float = 0.0,
) -> None:
    """Refuse what does not go together, before anything is trained.

        algorithm               ratio_level        reduction            delta, dual_clip   update_epochs
        reinforce               decision, joint    any                  none               1
        ppo, grpo               decision, joint    any                  at most one        any
        dr_grpo                 decision, joint    constant             at most one        any
        dapo                    decision, joint    per_decision         at most one        any
        bnpo                    decision, joint    per_decision_local   at most one        any
        gspo                    sequence           any                  at most one        any
        cispo, sapo             decision, joint    any                  none               any

    The bounds clip_low and clip_high are read by the rows from ppo to gspo and by no other. delta is
    compared with 1 + clip_high.

    Raises:
        ValueError: with the reason and the way out.
    """
    check_name(algorithm, ALGORITHMS, "algorithm")
    check_name(ratio_level, RATIO_LEVELS, "ratio_level")
    check_name(reduction, REDUCTIONS, "reduction")
    _check_ratio_level(algorithm, ratio_level)
    required = REQUIRED_REDUCTION.get(algorithm, reduction)
    if reduction != required:
        raise ValueError(
            f"reduction must be {required} for algorithm {algorithm}, got {reduction}; the name means that reduction: "
            "use it, or algorithm grpo"
        )
    if algorithm == "reinforce" and update_epochs != 1:
        raise ValueError(
            f"update_epochs must be 1 for algorithm reinforce, got {update_epochs}; it has no ratio to correct for a policy "
            "that has moved: use grpo"
        )
    if algorithm not in CLIPPED and (delta is not None or dual_clip is not None):
        raise ValueError(
            f"delta and dual_clip must be absent for algorithm {algorithm}, got {delta} and {dual_clip}; "
            f"{WHY_UNBOUNDED[algorithm]}: remove them"
        )
    _check_upper_bounds(delta, dual_clip, clip_high)


def choose(table: Mapping[str, T], name: str, parameter: str) -> T:
    """Return the entry of a table.

    Raises:
        ValueError: listing the known names.
    """
    check_name(name, table, parameter)
    return table[name]


def check_name(name: str, known: Collection[str], parameter: str) -> None:
    """Refuse a name that is not known.

    Raises:
        ValueError: listing the known names.
    """
    if name not in known:
        raise ValueError(
            f"{parameter} must be one of {', '.join(known)}, got {name!r}; correct the parameter"
        )


def _check_ratio_level(algorithm: str, ratio_level: str) -> None:
    if algorithm == "gspo" and ratio_level != "sequence":
        raise ValueError(
            f"ratio_level must be sequence for algorithm gspo, got {ratio_level}; the length-normalised ratio is what makes "
            "it gspo: use grpo for the others"
        )
    if algorithm != "gspo" and ratio_level == "sequence":
        raise ValueError(
            f"ratio_level must be decision or joint for algorithm {algorithm}, got sequence; the length-normalised ratio "
            "belongs to gspo"
        )


def _check_upper_bounds(delta: float | None, dual_clip: float | None, clip_high: float) -> None:
    if delta is not None and dual_clip is not None:
        raise ValueError(
            f"at most one of delta and dual_clip must be given, got {delta} and {dual_clip}; both bound the loss of A < 0: "
            "keep one"
        )
    _check_above(dual_clip, 1.0, "dual_clip")
    _check_above(delta, 1.0 + clip_high, "delta", "1 + clip_high = ")


def _check_above(value: float | None, bound: float, parameter: str, meaning: str = "") -> None:
    if value is not None and not (value > bound and math.isfinite(value)):
        raise ValueError(
            f"{parameter} must be finite and above {meaning}{bound:g}, got {value}; correct the parameter"
        )


DEFAULT_OPTIONS = LossOptions()
