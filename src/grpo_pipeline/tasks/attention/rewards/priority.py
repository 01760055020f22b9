"""Let the policy learn more from clinically significant cancer."""

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.rewards.params import Priority


def advantage_factors(grade_group: Tensor, priority: Priority) -> Tensor:
    """Return the factor on the advantages of each core, [P] -> [P]; 1 for a core whose grade group is not known (NaN).

    A factor on the rewards of a core would do nothing: all samples of a group belong to one core, and the comparison inside the
    group divides it away again. So it multiplies the advantages, after their normalisation.
    """
    return torch.where(grade_group >= priority.min_grade, priority.weight, 1.0)
