"""Declare the changes of training images."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class AugmentationParams(BaseModel):
    """How a training image is changed each time it is shown (``attention.augmentation``); the defaults change nothing.

    Attributes:
        horizontal_flip: probability of exchanging left and right.
        rotation_degrees: the image turns about its centre by a uniform angle up to this, either way.
        translation: largest shift along x and along y, as a share of the image side.
        scale: lowest and highest factor of its size; 1 leaves it unchanged.
        gain: the grey levels are multiplied by a uniform factor in 1 -+ gain.
        gamma: the grey levels (on a scale from 0 to 1) are raised to a power e^u, u uniform in -+ gamma.
        speckle: standard deviation of normal noise that multiplies every pixel, around 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    horizontal_flip: float = Field(default=0.0, ge=0, le=1)
    rotation_degrees: float = Field(default=0.0, ge=0, le=180)
    translation: float = Field(default=0.0, ge=0, lt=0.5)
    scale: tuple[float, float] = (1.0, 1.0)
    gain: float = Field(default=0.0, ge=0, lt=1)
    gamma: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    speckle: float = Field(default=0.0, ge=0, allow_inf_nan=False)

    @property
    def moves(self) -> bool:
        """Check whether pixels change their place."""
        amounts = (self.horizontal_flip, self.rotation_degrees, self.translation)
        return any(amounts) or self.scale != (1.0, 1.0)

    @property
    def recolours(self) -> bool:
        """Check whether grey levels change."""
        return bool(self.gain or self.gamma or self.speckle)

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        low, high = self.scale
        if not 0.1 <= low <= high <= 10:
            raise ValueError(
                f"scale must be [lowest, highest] with 0.1 <= lowest <= highest <= 10, got [{low}, {high}]; correct it"
            )
        return self
