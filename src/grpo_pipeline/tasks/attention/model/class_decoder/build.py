"""Build the class decoder of a kind."""

from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_decoder.glimpse import GlimpseDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.global_decoder import GlobalDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.params import (
    ClassDecoderParams,
    GlimpseParams,
    StatisticsParams,
)
from grpo_pipeline.tasks.attention.model.class_decoder.point_decoder import PointDecoder
from grpo_pipeline.tasks.attention.model.class_decoder.statistics_decoder import StatisticsDecoder


def build_class_decoder(
    params: ClassDecoderParams, channels: int, classes: Classes | None
) -> PointDecoder | GlobalDecoder:
    """Build the class decoder that the parameters name, with random weights.

    Args:
        params: of the class decoder.
        channels: of the mask decoder's token, which ``global`` reads.
        classes: that it tells apart; None for a label.
    """
    if isinstance(params, GlimpseParams):
        return GlimpseDecoder(params, classes)
    if isinstance(params, StatisticsParams):
        return StatisticsDecoder(params, classes)
    return GlobalDecoder(channels, classes)
