"""The frozen reference policy."""

import copy
from typing import TypeVar

from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def frozen_copy(module: Module) -> Module:
    """Copy a module for use as the reference: own memory, evaluation mode, no gradients.

    The copy shares no parameter with the original, so no optimiser of the original can move it.
    """
    reference = copy.deepcopy(module)
    reference.requires_grad_(False)
    for parameter in reference.parameters():
        parameter.grad = None
    return reference.eval()
