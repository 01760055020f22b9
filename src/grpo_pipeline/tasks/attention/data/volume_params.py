"""Declare the plane that is read of a file with several slices."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class VolumeParams(BaseModel):
    """The plane of a file with more than one slice; masks are taken at the same plane.

    Attributes:
        axis: axis of the slices in the canonical orientation (docs/attention/data.md): 0 slice or frame, 1 row, 2 column.
        take: the ``middle`` slice, a projection of all of them, the slice ``index``, or several ``frames``, each an example.
        index: the slice that ``index`` takes, counted from 0; null with every other ``take``.
        frames: the slices that ``frames`` takes: ``all``, ``every 5`` (0, 5, 10, ...), or a list of them, counted from 0; null
            with every other ``take``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    axis: Literal[0, 1, 2]
    take: Literal["middle", "max_projection", "mean_projection", "index", "frames"]
    index: Annotated[int, Field(ge=0)] | None = None
    frames: (
        Literal["all"]
        | Annotated[str, Field(pattern=r"^every [1-9][0-9]*$")]
        | Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
        | None
    ) = Field(default=None, exclude_if=lambda frames: frames is None)

    @model_validator(mode="after")
    def _index_belongs_to_take(self) -> Self:
        for name, kind in (("index", "a number"), ("frames", "all, every <n> or a list")):
            value = getattr(self, name)
            if (self.take == name) != (value is not None):
                rule = (
                    f"{kind} with take: {name}"
                    if self.take == name
                    else f"null with take: {self.take}"
                )
                raise ValueError(
                    f"attention.data.volume.{name} must be {rule}, got {value}; correct one of them"
                )
        if isinstance(self.frames, tuple) and len(set(self.frames)) < len(self.frames):
            raise ValueError(
                f"attention.data.volume.frames must name each frame once, got {list(self.frames)}; drop the copies"
            )
        return self
