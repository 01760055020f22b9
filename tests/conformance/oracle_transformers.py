"""Transformers' own samplers on our cases: the processors that ``generate`` applies, in its order."""

from collections.abc import Callable, Mapping
from typing import Any

import constants
from cases import LogitsCase
from outcomes import Outcome, with_gradient
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper


def truncated(case: LogitsCase) -> Outcome:
    """Return the squared probabilities after temperature, top-k and top-p."""
    processors = LogitsProcessorList(
        [TemperatureLogitsWarper(case.temperature), TopKLogitsWarper(constants.TOP_K), TopPLogitsWarper(constants.TOP_P)]
    )

    def compute(hidden: Tensor, weight: Tensor) -> Tensor:
        probabilities = processors(None, (hidden @ weight.T).flatten(0, 1)).softmax(-1)
        # The sum of probabilities is 1 and has no gradient; that of their squares has one.
        return probabilities.square()

    return with_gradient(compute, case.hidden, case.weight)


ORACLES: Mapping[str, Callable[[Any], Outcome]] = {"truncated": truncated}
