"""Priority of clinically significant cancer (csPCa): how much a core counts in the policy loss.

A factor on the rewards of a core would do nothing: all samples of a group belong to one core, and the comparison inside
the group divides it away again. So the factor is applied to the advantages, after their normalisation.
"""

import torch
from torch import Tensor

from grpo_pipeline.tasks.attention.batch import AttentionBatch
from grpo_pipeline.tasks.attention.model_params import RewardParams


def cspca_weights(batch: AttentionBatch, params: RewardParams) -> Tensor | None:
    """Return the weight of each core, [P], or None where all are 1.

        w[p] = cspca_weight where grade_group[p] >= cspca_min_grade, else 1

    A core whose grade group is not known (NaN) counts 1.
    """
    if params.cspca_weight == 1.0:
        return None
    is_significant = batch.grade_group >= params.cspca_min_grade
    return torch.where(is_significant, params.cspca_weight, 1.0)
