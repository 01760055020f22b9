"""Parameters of a prediction for images of the user's own (``attention.predict``)."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class PredictParams(BaseModel):
    """Which model scores which images; columns, folders and spacing are those of ``attention.data``.

    Attributes:
        arm: whose newest model it is.
        root: the data root as configured; set through ``attention_predict_root`` in globals.yml or on the command line.
        manifest: name of the CSV below the root, set in the same two ways.
        on_bad_row: ``fail`` stops before anything is scored; ``quarantine`` goes on without the bad rows and lists them.
        seed: of the points.
        n_samples: point sets per core; their mean is the score, the first one is drawn.
        abstain: whether an image unlike those of the training gets no probability, beside being marked.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    root: str
    manifest: str
    on_bad_row: Literal["fail", "quarantine"]
    seed: Annotated[int, Field(ge=0)]
    n_samples: Annotated[int, Field(ge=1, le=1000)]
    abstain: bool
