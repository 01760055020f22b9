"""``class_decoder.kind: global``: the mask decoder's token, which sees the whole image."""

from torch import Tensor, nn

from grpo_pipeline.core.training.precision import at_least_float32, exact_region
from grpo_pipeline.tasks.attention.data.classes import Classes
from grpo_pipeline.tasks.attention.model.class_scores import ClassHead, class_head, n_outputs


class GlobalDecoder(nn.Module):
    """Read the cancer logit, or the scores of several classes, from the mask decoder's output token [P, G, channels]."""

    def __init__(self, channels: int, classes: Classes | None = None) -> None:
        super().__init__()
        self.outputs = n_outputs(classes)
        self.classes: ClassHead | None = class_head(classes)
        self.net = nn.Sequential(
            nn.Linear(channels, channels),
            nn.ReLU(),
            nn.Linear(channels, self.outputs),
        )

    def forward(self, token: Tensor) -> Tensor:
        """Return cancer logits [P, G], or class scores [P, G, C]."""
        with exact_region(token):
            logits: Tensor = self.net(at_least_float32(token))
        return logits.squeeze(-1) if self.outputs == 1 else logits
