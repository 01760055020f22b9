"""Score replies that are JSON of a given form."""

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from grpo_pipeline.core.objective.part import Weighed
from grpo_pipeline.tasks.dialogue.scores.reference_pairs import Answers, Replies


class JsonReward(Weighed):
    """A form of replies that are JSON.

    Attributes:
        fits: JSON schema (draft 2020-12) that a reply must fit; an empty one for any JSON.
    """

    fits: dict[str, Any] = Field(default_factory=dict)

    @field_validator("fits")
    @classmethod
    def _check_schema(cls, fits: dict[str, Any]) -> dict[str, Any]:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError

        try:
            Draft202012Validator.check_schema(fits)
        except SchemaError as error:
            raise ValueError(
                f"fits must be a JSON schema, got {error.message} at {error.json_path}; correct it"
            ) from error
        return fits


def json_form(replies: Replies, answers: Answers, *, fits: dict[str, Any]) -> NDArray[np.float64]:
    """Score every reply 1 if all of it is one JSON value that fits the schema, else 0; [N].

    The answers are not read. Blanks around a reply do not count; NaN and Infinity, which JSON does not know, do not fit.
    """
    # Imported here: the other scores need no library.
    from jsonschema import Draft202012Validator
    from referencing import Registry

    validator = Draft202012Validator(fits, registry=Registry())  # fetches nothing from elsewhere
    return np.asarray([_is_valid(reply, validator) for reply in replies], dtype=np.float64)


def _is_valid(reply: str, validator: Any) -> bool:
    try:
        value = json.loads(reply, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return bool(validator.is_valid(value))


def _refuse(name: str) -> None:
    raise ValueError(f"a value must be JSON, got {name}; leave it out")
