"""Spec of the attention task: arms, metrics and words."""

from grpo_pipeline.tasks.attention.data.params import AugmentationParams, DataParams, SplitParams
from grpo_pipeline.tasks.attention.data.phantom.patients import PhantomParams
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.params import (
    ModelParams,
    RewardParams,
    SupervisedParams,
)
from grpo_pipeline.tasks.spec import TaskSpec, Wording

SPEC = TaskSpec(
    name="attention",
    arms=("supervised", "grpo"),
    key="core_id",
    noun="core",
    optional_stages=("pretraining",),
    metrics="grpo_pipeline.tasks.attention.evaluation.metrics:build_suite",
    baselines="grpo_pipeline.tasks.attention.model.classifiers:fit_baselines",
    words=Wording(
        drawn="one set of points per core",
        gain="its points − its start's",
        rules="Other ways to choose the points, with the decoder of",
        rule="points",
        others="Other points",
        caption="Other points with each arm's own decoder",
        explained="The same trained decoders with points from other rules",
        choices={
            "start": "the points that it began with",
            "greedy": "its likeliest points",
            "pooled": "its points, the mean probability of all its sets",
            "shuffled": "its points of another core",
            "none": "its points withheld",
            "nothing": "no points, in training and here",
            "uniform": "drawn uniformly",
            "centre": "in the middle of the region",
            "fixed": "in the middle of the image",
            "constant": "where training outlines lie most often",
            "blobs": "in the middles of dark blobs",
            "heatmap": "at the highest cells of the heatmap of no points",
            "oracle": "placed by one who knows the lesion",
            "picture": "a regression on aspect, region and border, no points",
            "texture": "a regression on co-occurrence and gradients, no points",
            "cnn": "a small network of the whole image, no points",
            "attention_cnn": "a small network with attention; its highest cells",
            "unet": "a small network that draws the lesion; its highest cells",
        },
        clusters="patient",
    ),
    pictures="grpo_pipeline.pipelines.data.attention.image_sheet:draw_frames",
    outputs={
        "heatmap": "heatmap",
        "prompted_mask": "prompted mask",
        "attention": "attention map",
        "prob": "probability",
    },
    sections={
        "phantom": PhantomParams,
        "data": DataParams,
        "split": SplitParams,
        "augmentation": AugmentationParams | None,
        "model": ModelParams,
        "reward": RewardParams,
        "supervised_loss": SupervisedParams,
        "predict": PredictParams,
    },
)
