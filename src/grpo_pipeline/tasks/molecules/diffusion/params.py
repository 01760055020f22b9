"""Parameters of the diffusion: its noise, its network, and how trajectories are drawn and scored."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from grpo_pipeline.core.agreement import EXECUTION
from grpo_pipeline.tasks.params import Section

EntryReduction = Literal["sum", "mean"]
Estimator = Literal["step", "eager"]
Start = Literal["independent", "per_group"]


class ExponentParams(Section):
    """Exponents on time of the cosine schedule; a component with a larger exponent keeps its classes longer.

    Attributes:
        atoms: of the classes of atoms.
        charges: of the charges.
        bonds: of the bonds.
    """

    atoms: float = Field(gt=0)
    charges: float = Field(gt=0)
    bonds: float = Field(gt=0)


class NoiseParams(Section):
    """The noise that turns molecules into random graphs.

    Attributes:
        steps: T.
        limit: distribution of the classes after T steps: ``uniform``, or ``marginal``, that of the training data.
        exponents: exponents of the cosine schedule, one per component.
    """

    steps: int = Field(ge=1)
    limit: Literal["uniform", "marginal"]
    exponents: ExponentParams


DELETED: dict[str, dict[str, Any]] = {
    "noise": {"smoothing": 1.0},
    "denoiser": {"expansion": 2, "features": "cycles"},
    "prompt": {"max_atoms": None},
    "sampling": {"temperature": 1.0},
}
"""Section -> keys that it had in an older version, with the value that is now a constant."""


class DenoiserParams(Section):
    """Size of the graph transformer that predicts x0.

    Attributes:
        layers: number of layers.
        width: width of a node, a multiple of heads.
        pair_width: width of a pair of nodes.
        global_width: width of the whole graph.
        heads: number of attention heads.
    """

    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    pair_width: int = Field(ge=1)
    global_width: int = Field(ge=1)
    heads: int = Field(ge=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width must be a multiple of heads, got {self.width} and {self.heads}; change one of them"
            )
        return self


class X0LossParams(Section):
    """Weights of the supervised loss's components; DiGress and MiDi count bonds 5 and 2 times.

    Attributes:
        atoms: of the classes of atoms.
        charges: of the charges.
        bonds: of the bonds.
    """

    atoms: float = Field(ge=0)
    charges: float = Field(ge=0)
    bonds: float = Field(ge=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.atoms + self.charges + self.bonds > 0:
            raise ValueError(
                "at least one weight of the x0 loss must be above 0, got 0 for all; the network would learn nothing"
            )
        return self


class TrajectoryParams(Section):
    """How trajectories are drawn and scored.

    Attributes:
        start: noise that the G samples of a prompt start from: ``independent``, or the same graph ``per_group``.
        entry_reduction: the log-probability of a step is the ``sum`` over its entries (exact), or their ``mean``. The ratio of a
            mean is the geometric mean of the entries' ratios, near 1 for a graph of any size. Clip ranges must fit the choice.
        estimator: ``step``: log p(z_{t-1} | z_t); ``eager``: log p(x0 = the final graph | z_t).
        steps_per_update: number of decisions of each trajectory that an update scores, drawn anew each time; null scores all T.
        steps_per_chunk: number of decisions whose graph of computation exists at a time; null computes all at once.
    """

    start: Start
    entry_reduction: EntryReduction
    estimator: Estimator
    steps_per_update: int | None = Field(ge=1)
    steps_per_chunk: Annotated[int | None, EXECUTION] = Field(ge=1)


def check_steps(noise: NoiseParams, trajectory: TrajectoryParams) -> None:
    """Refuse an update that scores more steps than a trajectory has.

    Raises:
        ValueError: naming both parameters.
    """
    if trajectory.steps_per_update is not None and trajectory.steps_per_update > noise.steps:
        raise ValueError(
            f"steps_per_update must be at most the {noise.steps} steps of the noise, got {trajectory.steps_per_update}; "
            "null scores all of them"
        )


@dataclass(frozen=True)
class Diffusion:
    """The parameters of a diffusion model: noise, denoising network, trajectories and loss of x0."""

    noise: NoiseParams
    denoiser: DenoiserParams
    trajectory: TrajectoryParams
    supervised: X0LossParams
