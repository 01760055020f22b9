"""Spec of the attention task: arms, metrics and words."""

from grpo_pipeline.tasks.attention.augmentation_params import AugmentationParams
from grpo_pipeline.tasks.attention.data.params import DataParams
from grpo_pipeline.tasks.attention.data.phantom.params import PhantomParams
from grpo_pipeline.tasks.attention.data.split_params import SplitParams
from grpo_pipeline.tasks.attention.inference.params import PredictParams
from grpo_pipeline.tasks.attention.losses.params import SupervisedParams
from grpo_pipeline.tasks.attention.model.params import ModelParams
from grpo_pipeline.tasks.attention.rewards.params import RewardParams
from grpo_pipeline.tasks.spec import TaskSpec, Wording

SPEC = TaskSpec(
    name="attention",
    arms=("supervised", "grpo"),
    key="core_id",
    noun="core",
    one_of_each="grpo_pipeline.tasks.attention.pipelines.image_sheet:draw_examples",
    optional_stages=("pretraining",),
    metrics="grpo_pipeline.tasks.attention.evaluation.metrics:build_suite",
    pipelines="grpo_pipeline.tasks.attention.pipelines",
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
        terms={
            "AUROC": "The chance that a case with the label is scored above one without it: 0.5 is guessing, 1 is perfect.",
            "ROC curve": "Share of cases found against share of false alarms, as the threshold falls.",
            "average precision": "The share of right ones among the cases called positive, averaged over all thresholds.",
            "sensitivity": "The share of the positive cases that are called positive.",
            "specificity": "The share of the negative cases that are called negative.",
            "Brier score": "The mean squared distance between the predicted probability and the truth: 0 is perfect.",
            "calibration error": "How far predicted probabilities lie from how often they come true (ECE): 0 is perfect.",
            "Dice": "Twice the area that mask and outline share, divided by the sum of their areas: 1 is the same area.",
            "intersection over union": "The area that mask and outline share, divided by the area of both: 1 is the same area.",
            "Hausdorff distance": "How far the edges of mask and outline lie apart at most, leaving out the worst 5%.",
            "heatmap": "The decoder's map of the image: how suspicious it finds each place.",
            "attention map": "The probability of each cell of the image to be chosen as the first point.",
            "prompted mask": "The outline of a lesion that the decoder draws from the chosen points.",
            "bag": "The part of the image that the label is about, such as the trace of the needle.",
            "involvement": "The share of a biopsy core that is cancer.",
            "grade group": "How aggressive a cancer looks under the microscope, from 1 to 5.",
            "exchanged": "The arm's own choices for another example: only what depends on the example is better than they are.",
        },
    ),
    pictures="grpo_pipeline.tasks.attention.pipelines.training_animation:draw_frames",
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
