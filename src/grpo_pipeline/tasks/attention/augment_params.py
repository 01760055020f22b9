"""Parameters of the augmentation of training images."""

from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class AugmentationParams(BaseModel):
    """How a training image is changed each time it is shown (``attention.augmentation``); what is not given changes nothing.

    Attributes:
        horizontal_flip: probability that left and right change places.
        vertical_flip: probability that top and bottom change places.
        rotation_degrees: the image turns about its centre by a uniform angle up to this, either way.
        translation: share of the image side; it shifts by up to this, along x and along y.
        scale: lowest and highest factor of its size, 1 for as it is.
        gain: the grey levels are multiplied by a uniform factor in 1 -+ gain.
        gamma: they are raised to a power e^u (on a scale from 0 to 1), u uniform in -+ gamma.
        speckle: standard deviation of normal noise that multiplies every pixel, around 1.
        blackout_patches: number of squares at uniform places that are set to 0.
        blackout_size: share of the image side that a square takes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    horizontal_flip: float = Field(default=0.0, ge=0, le=1)
    vertical_flip: float = Field(default=0.0, ge=0, le=1)
    rotation_degrees: float = Field(default=0.0, ge=0, le=180)
    translation: float = Field(default=0.0, ge=0, lt=0.5)
    scale: tuple[float, float] = (1.0, 1.0)
    gain: float = Field(default=0.0, ge=0, lt=1)
    gamma: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    speckle: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    blackout_patches: int = Field(default=0, ge=0)
    blackout_size: float = Field(default=0.1, gt=0, le=0.5)

    @property
    def moves(self) -> bool:
        """Whether pixels change their place."""
        amounts = (self.horizontal_flip, self.vertical_flip, self.rotation_degrees, self.translation)
        return any(amounts) or self.scale != (1.0, 1.0)

    @property
    def recolours(self) -> bool:
        """Whether grey levels change."""
        return bool(self.gain or self.gamma or self.speckle or self.blackout_patches)

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        low, high = self.scale
        if not 0.1 <= low <= high <= 10:
            raise ValueError(
                f"scale must be [lowest, highest] with 0.1 <= lowest <= highest <= 10, got [{low}, {high}]; correct it"
            )
        return self

    @model_validator(mode="after")
    def _check_effect(self) -> Self:
        if not (self.moves or self.recolours):
            raise ValueError("augmentation must change something, got only values that do not; use augmentation: null")
        return self
