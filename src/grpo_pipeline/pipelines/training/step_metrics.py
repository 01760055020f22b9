"""Put the metrics of the updates of a batch together."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Metrics = dict[str, float]

# Over the update epochs of a batch a metric is averaged, except where the worst one matters.
WORST = {"policy/ratio_max"}


def merge_metrics(measured: Sequence[Mapping[str, Tensor | float]]) -> Metrics:
    """Average the metrics of the update epochs; ``policy/ratio_first`` keeps the first ratio, exactly 1 when all is well."""
    numbers = [to_floats(metrics) for metrics in measured]
    names = list(dict.fromkeys(name for metrics in numbers for name in metrics))
    found = {name: [metrics[name] for metrics in numbers if name in metrics] for name in names}
    merged = {
        name: max(values) if name in WORST else sum(values) / len(values)
        for name, values in found.items()
    }
    if "policy/ratio_mean" in numbers[0]:
        merged["policy/ratio_first"] = numbers[0]["policy/ratio_mean"]
    return merged


def to_floats(metrics: Mapping[str, Tensor | float]) -> Metrics:
    """Return plain numbers; one transfer from the device for all tensors."""
    tensors = {name: value for name, value in metrics.items() if isinstance(value, Tensor)}
    numbers = (
        torch.stack([t.detach().double() for t in tensors.values()]).tolist() if tensors else []
    )
    return {name: float(value) for name, value in metrics.items() if name not in tensors} | dict(
        zip(tensors, numbers, strict=True)
    )
