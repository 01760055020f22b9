"""Measure prompted masks against lesion outlines."""

from functools import partial

import numpy as np

from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import NOT_NEGATIVE, SHARE, Metric
from grpo_pipeline.tasks.attention.evaluation.attention_metrics import OUTLINE


def mask_metrics() -> dict[str, Metric]:
    """Return how well the prompted mask, or a baseline's, meets the outline of a held-out core; one without is left out."""
    mean = partial(
        mean_metric, reason="needs a core with a lesion outline, and a mask of this rule"
    )
    clicks = "Points until the mask has a Dice of {}, one more than there are if never" + OUTLINE
    return {
        "dice": mean(
            "dice",
            title=f"Dice of the prompted mask{OUTLINE}",
            better="higher",
            bounds=SHARE,
        ),
        "iou": mean(
            "iou",
            title=f"Intersection over union of the prompted mask{OUTLINE}",
            better="higher",
            bounds=SHARE,
        ),
        "hausdorff95_px": mean(
            "hausdorff95_px",
            title=f"Hausdorff distance of the prompted mask, 95 %, pixels of the model image{OUTLINE}",
            better="lower",
            bounds=NOT_NEGATIVE,
        ),
        "hausdorff95_mm": mean_metric(
            "hausdorff95_mm",
            title=f"Hausdorff distance of the prompted mask, 95 %, mm{OUTLINE}",
            better="lower",
            reason="needs a core with a lesion outline and a known pixel spacing",
            bounds=NOT_NEGATIVE,
        ),
        **{
            f"clicks_to_{level}": mean(
                f"clicks_to_{level}",
                title=clicks.format(level / 100),
                better="lower",
                bounds=(1.0, np.inf),
            )
            for level in (80, 90)
        },
    }
