"""Measure how far an input lies from the training inputs, and set the limit beyond which a model should not be trusted.

Inputs are described by a few groups of statistics. Within a group, the distance is Mahalanobis' over the training inputs. The
rarity of a distance follows from the tail of the training inputs' distances,

    rarity(d) = -log P(distance > d | distance > start) = tail * log(d / start)

and the rarest group counts: there is one number and one limit for any number of statistics. The limit is a conformal quantile
over held-out inputs. It depends only on how often ordinary inputs exceed it, and holds also if the tail is no power law.

Sources: Lee et al., "A simple unified framework for detecting out-of-distribution samples", 2018 (Mahalanobis distance in
features; how this differs: one mean for all classes). Ledoit and Wolf, "A well-conditioned estimator for large-dimensional
covariance matrices", 2004. Hill, "A simple general approach to inference about the tail of a distribution", 1975. Lee, Barber and
Willett, "Distribution-free inference with hierarchical data", 2023, section 3 (clusters in the place of single inputs). How this
differs: the level is corrected by leaving clusters out, since their bound marks 2% where inputs of a cluster differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, as_tensor

from grpo_pipeline.core.storage.weights import ModelWeights

FALSE_ALARMS = 0.05
"""Expected share of ordinary inputs beyond the limit."""
INPUTS = "inputs"
"""Where an exported model keeps this: an entry of its description, and a file of tensors."""
FOLDS, TAIL_QUANTILE = 5, 0.9
PRIOR_COUNT, PRIOR_EXCESS = 5, 0.2
"""Added to the exceedances of the tail and to their sum of log(d / start): few of them do not make a tail that ends at once."""
RANGE = (0.005, 0.995)
SMALLEST = 1e-6
"""Least start of a tail and least share of it: equal inputs have the distance 0."""
NAMED = 2
"""Groups that the reason for a doubt names at most."""

Vectors = Mapping[str, np.ndarray]
"""Group -> statistics of n inputs, float64 [n, p]; of an input that is judged NaN where one is not known."""


@dataclass(frozen=True)
class Statistic:
    """A number that describes an input.

    Attributes:
        name: its name in sentences.
        floor: size of a negligible difference; it is added to the spread, which may be 0 in training.
    """

    name: str
    floor: float


class Group(BaseModel):
    """A group of statistics of the training inputs.

    Attributes:
        names: names of the statistics; empty for a group whose single numbers a person cannot read.
        start: 0.9 quantile of the distances of training inputs that were left out of the fit, above 0.
        tail: Pareto index of the distances above it.
        low: 0.005 quantile of each statistic.
        high: 0.995 quantile of each statistic.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    names: tuple[str, ...]
    start: float = Field(gt=0)
    tail: float = Field(gt=0)
    low: tuple[float, ...]
    high: tuple[float, ...]


class Told(BaseModel):
    """Statistics of the training inputs, as a model's description holds them.

    Attributes:
        trained_on: number of training inputs that the distances are measured to.
        held_out: number of validation inputs that the limit was fitted on.
        clusters: number of clusters, such as patients, of the held-out inputs.
        limit: rarity beyond which an input is outside; None without held-out inputs.
        false_alarms: expected share of ordinary inputs of a new cluster that are called outside. With fewer than 19 clusters it
            can be larger than the wanted 0.05.
        groups: name -> group of statistics.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    trained_on: int = Field(ge=1)
    held_out: int = Field(ge=0)
    clusters: int = Field(ge=0)
    limit: float | None
    false_alarms: float | None
    groups: dict[str, Group]


@dataclass(frozen=True)
class Judgement:
    """Judgement about an input: whether it is like the training inputs, and the reason if not.

    Attributes:
        distance: distance from the training inputs in units of the limit, in the group where it is largest; above 1 the input is
            outside.
        why: the groups beyond the limit, each with the statistic that deviates most; "" for an input that is not outside.
    """

    distance: float
    why: str

    @property
    def is_outside(self) -> bool:
        """Check whether the input is unlike the training inputs."""
        return self.distance > 1


@dataclass(frozen=True)
class Shape:
    """Mean, spread and precision of standardised statistics: ``distance`` is their root mean square after whitening."""

    mean: np.ndarray
    spread: np.ndarray
    precision: np.ndarray

    def deviations(self, values: np.ndarray) -> np.ndarray:
        """Return the statistics in units of their spread, [n, p]."""
        return np.asarray((values - self.mean) / self.spread)

    def distance(self, values: np.ndarray) -> np.ndarray:
        """Compute sqrt(z' P z / p) of each row, [n, p] -> [n]; unknown statistics (NaN) add nothing.

        An unknown statistic is replaced by its expectation given the known ones u, -P_mm^-1 P_mu z_u; that leaves the Mahalanobis
        distance of u.
        """
        z = self.deviations(values)
        for row in z:  # a view: the row of z is changed
            lost = np.isnan(row)
            if not lost.any():
                continue
            between = self.precision[np.ix_(lost, ~lost)] @ row[~lost]
            row[lost] = -np.linalg.solve(self.precision[np.ix_(lost, lost)], between)
        return np.asarray(np.sqrt(np.einsum("np,pq,nq->n", z, self.precision, z) / z.shape[1]))


@dataclass(frozen=True)
class Familiarity:
    """The distances of a trained model and their limit."""

    told: Told
    shapes: Mapping[str, Shape]

    def rarities(self, vectors: Vectors) -> dict[str, np.ndarray]:
        """Return the rarity of every input in each group, float64 [n]; below 0 before the tail."""
        groups = self.told.groups
        # From ``start`` on the tail is modelled as a power law: log(ratio) * tail is a standard exponential there.
        ratios = {
            name: shape.distance(vectors[name]) / groups[name].start
            for name, shape in self.shapes.items()
        }
        return {
            name: groups[name].tail * np.log(np.maximum(ratio, SMALLEST))
            for name, ratio in ratios.items()
        }

    def judge(self, vectors: Vectors) -> Judgement | None:
        """Judge an input, each group [1, p]; None without a limit."""
        if self.told.limit is None:
            return None
        rarities = {name: float(rarity[0]) for name, rarity in self.rarities(vectors).items()}
        # At the limit of the rarity, the distance is start * exp(limit / tail).
        found = {
            name: float(np.exp((rarity - self.told.limit) / self.told.groups[name].tail))
            for name, rarity in rarities.items()
        }
        beyond = sorted((name for name in found if found[name] > 1), key=lambda name: -found[name])
        reasons = [
            f"{name} {found[name]:.1f} times the limit{self._detail(name, vectors[name][0])}"
            for name in beyond[:NAMED]
        ]
        more = [f"{len(beyond) - NAMED} more"] if len(beyond) > NAMED else []
        return Judgement(max(found.values()), "; ".join(reasons + more))

    def _detail(self, name: str, values: np.ndarray) -> str:
        """Name the statistic of a group that deviates most, if a person can read it."""
        group = self.told.groups[name]
        if not group.names:
            return ""
        first = int(np.nanargmax(np.abs(self.shapes[name].deviations(values[None])[0])))
        if group.low[first] <= values[first] <= group.high[first]:
            return " (each in its range, not so together)"
        return f" ({group.names[first]} {values[first]:.3g}, in training {group.low[first]:.3g} to {group.high[first]:.3g})"

    def tensors(self) -> dict[str, Tensor]:
        """Return the arrays as they are stored with a model."""
        return {
            f"{name}.{key}": as_tensor(value)
            for name, shape in self.shapes.items()
            for key, value in vars(shape).items()
        }

    @classmethod
    def from_model(cls, weights: ModelWeights) -> "Familiarity | None":
        """Read an exported model's description of its training inputs; None for a model without it.

        Raises:
            ValueError: if the description does not fit its tensors.
        """
        if weights.config.get(INPUTS) is None:
            return None
        told = Told.model_validate(weights.config[INPUTS])
        arrays = weights.beside.get(INPUTS, {})
        shapes = {}
        for name, group in told.groups.items():
            try:
                shape = Shape(
                    *(arrays[f"{name}.{key}"].numpy() for key in ("mean", "spread", "precision"))
                )
            except KeyError as error:
                raise ValueError(
                    f"the file {INPUTS} must hold what the model names, got no {error}; copy the model again"
                ) from error
            width = len(group.low)
            if (shape.mean.shape, shape.spread.shape, shape.precision.shape) != (
                (width,),
                (width,),
                (width, width),
            ):
                raise ValueError(
                    f"the file {INPUTS} must hold {width} numbers for {name}, got {shape.mean.shape}; copy the model again"
                )
            shapes[name] = shape
        return cls(told, shapes)


def fit_familiarity(
    trained: Vectors,
    held_out: Vectors,
    statistics: Mapping[str, Sequence[Statistic]],
    *,
    clusters: tuple[np.ndarray, np.ndarray],
) -> Familiarity:
    """Fit distances to training inputs and the limit to held-out ones.

    Args:
        trained: at least one input.
        held_out: inputs that the model was not fitted to; may be empty.
        statistics: group -> its p statistics; a group whose names are all "" is not named in sentences.
        clusters: cluster of every training input and of every held-out input; inputs of a cluster are alike.
    """
    floors = {name: np.array([s.floor for s in group]) for name, group in statistics.items()}
    shapes = {name: fit_shape(trained[name], floors[name]) for name in statistics}
    groups = {
        name: Group(
            names=tuple(s.name for s in group) if any(s.name for s in group) else (),
            **left_out_tail(trained[name], floors[name], clusters[0]),
            low=tuple(np.quantile(trained[name], RANGE[0], axis=0).tolist()),
            high=tuple(np.quantile(trained[name], RANGE[1], axis=0).tolist()),
        )
        for name, group in statistics.items()
    }
    count = len(np.unique(clusters[1]))
    told = Told(
        trained_on=len(clusters[0]),
        held_out=len(clusters[1]),
        clusters=count,
        limit=None,
        false_alarms=None,
        groups=groups,
    )
    if not count:
        return Familiarity(told, shapes)
    # The rarity of an input is that of its rarest group, [n].
    scores = np.max(list(Familiarity(told, shapes).rarities(held_out).values()), axis=0)
    limit = conformal_limit(scores, clusters[1], rate=FALSE_ALARMS)
    bound = max(FALSE_ALARMS, 1 / (count + 1))
    return Familiarity(told.model_copy(update={"limit": limit, "false_alarms": bound}), shapes)


def fit_shape(values: np.ndarray, floor: np.ndarray) -> Shape:
    """Fit mean, spread and precision of the standardised statistics, shrunk by the method of Ledoit and Wolf.

    spread^2 = variance + floor^2,   C = shrunk covariance of z + diag(floor^2 / spread^2)
    """
    from sklearn.covariance import ledoit_wolf  # a second that only the fit pays

    mean = values.mean(axis=0)  # [p]
    spread = np.sqrt(values.var(axis=0) + floor**2)
    z = (values - mean) / spread  # [n, p]
    covariance = ledoit_wolf(z, assume_centered=True)[0] if len(z) > 1 else np.eye(z.shape[1])
    return Shape(mean, spread, np.linalg.inv(covariance + np.diag((floor / spread) ** 2)))


def left_out_tail(values: np.ndarray, floor: np.ndarray, clusters: np.ndarray) -> dict[str, float]:
    """Fit the tail of the distances of inputs to a fit without their cluster: its start, and its index (Hill).

        tail = (m + 5) / (sum of log(d / start) over the m distances above start + 5 * 0.2)

    There are five folds. With a single cluster, the fit includes the inputs themselves.
    """
    _, number = np.unique(clusters, return_inverse=True)
    fold = number % FOLDS
    distances = np.empty(len(values))
    # The distance of an input to a fit without its cluster.
    for k in np.unique(fold):
        rest = fold != k if (fold != k).any() else fold == k
        distances[fold == k] = fit_shape(values[rest], floor).distance(values[fold == k])
    start = max(float(np.quantile(distances, TAIL_QUANTILE)), SMALLEST)
    excess = np.log(distances[distances > start] / start)
    tail = (len(excess) + PRIOR_COUNT) / (float(excess.sum()) + PRIOR_COUNT * PRIOR_EXCESS)
    return {"start": start, "tail": tail}


def conformal_limit(scores: np.ndarray, clusters: np.ndarray, *, rate: float) -> float:
    """Compute the score that an input of a new cluster exceeds with an expected probability of ``rate``.

        limit(a) = smallest score with at most the mass a above it,   mass(score i) = 1 / K / (size of its cluster)
        share(a) = 1 / K sum_k (share of the inputs of cluster k above the limit(a K / (K - 1)) of the other clusters)

    The limit is that of the largest a whose share is at most ``rate``. It is moved towards the limit of the next a by the unused
    part of ``rate``. Since the density of a tail falls, that keeps the bound. Leaving a cluster out is the finite-sample
    correction: with one input per cluster and the first j + 1 above, share = (j+1)/K, but a new input exceeds with (j+1)/(K+1).
    If the inputs of a cluster are all alike, clusters count; if they are independent, inputs count.

    The new cluster is assumed to be exchangeable with the K held-out ones. The probability is over the choice of the clusters,
    too: for a fixed set of clusters it differs. If a single cluster is more than ``rate`` of all, the limit is the largest score.
    It is exceeded with a probability of at most 1 / (K + 1).
    """
    _, number, sizes = np.unique(clusters, return_inverse=True, return_counts=True)
    order, k = np.argsort(-scores, kind="stable"), len(sizes)
    falling, of = scores[order], number[order]  # [n]
    mass = 1 / (k * sizes[of])
    above = np.cumsum(mass) - mass  # before each score of the order
    if k == 1:
        return float(falling[0])
    levels = above[above <= 2 * rate + 2 / k]  # [m]; shares of larger ones are never asked for
    shares = np.zeros(len(levels))
    for cluster in range(k):
        own = of == cluster
        # The others' masses add up to (K - 1) / K, hence a K / (K - 1). If all mass may lie above, the limit is below all.
        others = np.append(falling[~own], -np.inf)
        before = np.concatenate([[0.0], np.cumsum(mass[~own])])
        last = np.searchsorted(before, levels + 1e-9, side="right") - 1
        shares += (falling[own][:, None] > others[last]).mean(axis=0) / k
    within = int((shares <= rate + 1e-12).sum())
    if within in (0, len(levels)):
        return float(falling[max(within - 1, 0)])
    step = (rate - shares[within - 1]) / (shares[within] - shares[within - 1])
    return float(falling[within - 1] + step * (falling[within] - falling[within - 1]))
