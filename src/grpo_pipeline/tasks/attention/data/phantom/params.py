"""Declare the parameters of the phantom; the code that draws states the sources (docs/attention/phantom.md)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class PhantomParams(BaseModel):
    """The number of generated cores, their patients, and how hard they are to read.

    Attributes:
        seed: the only source of randomness; core c of patient p depends on (seed, p, c) alone.
        image_size: side of the square image in pixels; geometry scales with it, the speckle does not.
        patients: number of patients.
        cores_per_patient: smallest and largest number of cores of a patient, inclusive.
        centers: number of centers; patient p belongs to center p modulo this number.
        lesion_share: smallest and largest lesion area as a share of the region.
        conspicuity: mean conspicuity of a lesion for grade groups 1 to 5 (0 = benign texture, 1 = fully changed).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)] = 0
    image_size: Annotated[int, Field(ge=32, le=1024)] = 128
    patients: Annotated[int, Field(ge=1)] = 200
    cores_per_patient: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (6, 8)
    centers: Annotated[int, Field(ge=1, le=26)] = 4
    lesion_share: tuple[Share, Share] = (0.08, 0.12)
    conspicuity: tuple[Share, Share, Share, Share, Share] = (0.37, 0.52, 0.64, 0.77, 0.88)

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "PhantomParams":
        for name in ("cores_per_patient", "lesion_share"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(
                    f"attention.phantom.{name} must be [smallest, largest], got [{low}, {high}]; swap the two numbers"
                )
        return self
