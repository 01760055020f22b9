"""Parameters of the reward: its components by name, each with its weight."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator

from grpo_pipeline.core.objective.part import Part, Weighed, weights_of


class BoundaryReward(Weighed):
    """Pay a penalty, -1 to 0, for points near the region's edge (``attention.reward.boundary``).

    Attributes:
        margin: how near that is, as share of the image side.
    """

    margin: float = Field(default=0.1, gt=0, lt=0.5)


class Priority(Part):
    """Multiply the advantages of clinically significant cancer (``attention.reward.priority``); it is no part of the sum.

    Attributes:
        weight: the factor.
        min_grade: grade group from which a cancer counts as significant.
    """

    weight: float = Field(gt=0)
    min_grade: int = Field(default=3, ge=1, le=5)


class RewardParams(Part):
    """The named components of the reward, weighed and added up (``attention.reward``; docs/attention/objectives.md).

    ``class`` and ``heatmap`` are measured where they are not paid, too, and so is ``points`` with a stop; the other components of
    the points are computed only where they are paid.

    Attributes:
        class_: log p(correct class).
        heatmap: the heatmap in the bag against the involvement.
        diversity: distance of a sample's points to those of its group's other samples.
        activation: the sample's own heatmap at its points.
        boundary: a penalty for points near the region's edge.
        points: a penalty for every point; with ``model.stop`` only.
        dice: overlap of the prompted mask and a shown outline.
        priority: no component, but a factor on the advantages of clinically significant cancer; null is 1 for every core.
    """

    model_config = ConfigDict(serialize_by_alias=True)

    class_: Weighed | None = Field(default=None, alias="class")
    heatmap: Weighed | None = None
    diversity: Weighed | None = None
    activation: Weighed | None = None
    boundary: BoundaryReward | None = None
    points: Weighed | None = None
    dice: Weighed | None = None
    priority: Priority | None = None

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each component by its name; 0 of one that is not paid."""
        return weights_of(self, without=("priority",))

    @property
    def reads_heatmap(self) -> bool:
        """Whether a component that is paid reads the heatmap."""
        return self.heatmap is not None or self.activation is not None

    @model_validator(mode="after")
    def _check_some_reward(self) -> Self:
        """Outlines alone may pay, too: a sample without a shown one then earns what its group earns, and teaches nothing."""
        if self.class_ is None and self.heatmap is None and self.dice is None:
            raise ValueError(
                "class, heatmap or dice must be given, got none of them; the others say nothing about cancer"
            )
        return self
