"""Prediction rows of eight cores of four patients, under one rule."""

import numpy as np
import pandas as pd

NAN = np.nan
ROWS = pd.DataFrame(
    {
        "core_id": list("abcdefgh"),
        "patient_id": ["p1", "p1", "p2", "p2", "p3", "p3", "p4", "p4"],
        "label": [0, 1, 0, 0, 1, 1, 0, 0],
        "involvement": [0.0, 0.7, 0.0, NAN, 0.2, NAN, 0.0, 0.0],
        "grade_group": [0.0, 2.0, 0.0, NAN, 3.0, NAN, 1.0, 0.0],
        "rule": "policy",
        "prob": [0.2, 0.6, 0.3, 0.7, 0.5, 0.9, 0.1, 0.4],
        "heatmap_prob": [0.1, 0.2, 0.3, NAN, 0.5, 0.6, 0.05, 0.25],
        "heatmap_top": [0.4, 0.3, 0.35, NAN, 0.6, 0.9, 0.1, 0.5],
        "pointing_hit": [NAN, 1.0, NAN, NAN, 0.0, NAN, NAN, NAN],
        "outlined_share": 0.25,
        "prob_std": [0.1, 0.2, 0.1, 0.0, 0.1, 0.1, 0.1, 0.1],
        "reward": [-0.5, -0.1, -0.3, -0.3, -0.2, -0.6, -0.4, -0.8],
        "reward_class": -0.2,
        "reward_heatmap": -0.4,
        "lesion_hit": [NAN, 0.6, NAN, NAN, 0.3, NAN, NAN, NAN],
        "lesion_coverage": [NAN, 0.1, NAN, NAN, 0.2, NAN, NAN, NAN],
        "points_used": [3.0, 2.0, 3.0, 1.0, 3.0, 2.5, 3.0, 0.5],
        "lesion_distance_mm": [NAN, 1.5, NAN, NAN, 4.0, NAN, NAN, NAN],
    }
).assign(prob_shift=NAN)
