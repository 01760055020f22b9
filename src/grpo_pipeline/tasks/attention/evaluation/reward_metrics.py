"""Average the reward and its components."""

from functools import partial

from grpo_pipeline.statistics.mean_metric import mean_metric
from grpo_pipeline.statistics.metric import Metric


def reward_metrics() -> dict[str, Metric]:
    """Return the metrics of the reward by name."""
    mean = partial(mean_metric, better="higher", reason="needs at least one core with a reward")
    return {
        "reward": mean("reward", title="Reward"),
        "reward_class": mean("reward_class", title="Reward, class component"),
        "reward_heatmap": mean("reward_heatmap", title="Reward, heatmap component"),
    }
