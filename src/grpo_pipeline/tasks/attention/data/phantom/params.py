"""Hold the parameters of the phantom: every number that its assumptions rest on (docs/phantom.md)."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

Share = Annotated[float, Field(ge=0.0, le=1.0)]

Positive = Annotated[float, Field(gt=0.0)]

Range = tuple[float, float]


class SpeckleParams(BaseModel):
    """Statistics of the speckle of benign tissue and of cancer; lengths in pixels, levels in dB.

    Attributes:
        benign_psf: width of the point spread along and across the beam in benign tissue.
        cancer_psf: the same in cancer.
        benign_density: scatterers per pixel in benign tissue.
        cancer_density: the same in cancer.
        duct_size: correlation length of the benign tissue's ducts.
        density_jitter: standard deviation of the logarithm of the density between images.
        cancer_level: brightness of the most conspicuous cancer beside benign tissue.
        lookalike_level: lowest and highest brightness of dark benign spots that look like cancer.
        shadow_level: lowest and highest brightness of shadows.
        attenuation: lowest and highest loss from the top to the bottom of an image.
        noise_floor: level of the noise that is added.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    benign_psf: tuple[Positive, Positive] = (0.95, 1.5)
    cancer_psf: tuple[Positive, Positive] = (0.75, 1.05)
    benign_density: Positive = 0.7
    cancer_density: Positive = 4.0
    duct_size: Positive = 1.6
    density_jitter: Positive = 0.4
    cancer_level: float = -1.0
    lookalike_level: Range = (-8.0, -3.5)
    shadow_level: Range = (-14.0, -6.0)
    attenuation: Range = (0.0, 7.0)
    noise_floor: float = -27.0


class PhantomParams(BaseModel):
    """How many cores are generated, for whom, and how hard they are to read.

    Attributes:
        seed: the only source of randomness; core c of patient p depends on (seed, p, c) alone.
        image_size: side of the square image in pixels; geometry scales with it, the speckle does not.
        patients: number of patients.
        cores_per_patient: smallest and largest number of cores of a patient, inclusive.
        centers: number of centers; patient p belongs to center p modulo this number.
        chunk_size: cores per chunk that is written to disk.
        prevalence: share of patients with cancer at average age and no family history.
        cancer_core_share: probability that a core of a patient with cancer holds cancer (at least one does).
        missing_share: probability that a PSA or a family history is unknown, for the whole patient.
        lesion_share: smallest and largest lesion area as a share of the region.
        lookalikes: largest number of hypoechoic benign areas in a core (uniform from 0).
        shadow_share: probability that a core has an acoustic shadow.
        conspicuity: mean conspicuity of a lesion for grade groups 1 to 5 (0 = benign texture, 1 = fully changed).
        conspicuity_spread: standard deviation of the conspicuity around that mean.
        speckle: statistics of the speckle.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    seed: Annotated[int, Field(ge=0)] = 0
    image_size: Annotated[int, Field(ge=32, le=1024)] = 128
    patients: Annotated[int, Field(ge=1)] = 200
    cores_per_patient: tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]] = (6, 8)
    centers: Annotated[int, Field(ge=1, le=26)] = 4
    chunk_size: Annotated[int, Field(ge=1)] = 64
    prevalence: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.85
    cancer_core_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.55
    missing_share: Share = 0.03
    lesion_share: tuple[Share, Share] = (0.08, 0.12)
    lookalikes: Annotated[int, Field(ge=0, le=5)] = 2
    shadow_share: Share = 0.35
    conspicuity: tuple[Share, Share, Share, Share, Share] = (0.37, 0.52, 0.64, 0.77, 0.88)
    conspicuity_spread: Share = 0.22
    speckle: SpeckleParams = SpeckleParams()

    @model_validator(mode="after")
    def _ranges_ascend(self) -> "PhantomParams":
        for name in ("cores_per_patient", "lesion_share"):
            low, high = getattr(self, name)
            if low > high:
                raise ValueError(
                    f"attention.phantom.{name} must be [smallest, largest], got [{low}, {high}]; swap the two numbers"
                )
        return self
