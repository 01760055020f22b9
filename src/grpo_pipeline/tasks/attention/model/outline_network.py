"""Train a network that learns outlines, and the label from what it has drawn."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.tasks.attention.batch import standardise
from grpo_pipeline.tasks.attention.data.examples import Examples
from grpo_pipeline.tasks.attention.losses.outline import outline_loss
from grpo_pipeline.tasks.attention.model.mask_agreement import overlap
from grpo_pipeline.tasks.attention.model.u_net import UNet
from grpo_pipeline.tasks.attention.model.whole_image_network import (
    EPOCHS,
    train_in_batches,
)


class OutlineNetwork(UNet):
    """Draw the lesion by a U-Net on half the pixels, and read the label from its deepest features.

    It has three scales. The label's logit reads the mean of the features over the image and over what is drawn.

    Args:
        width: channels of the first scale; the next have two and four times as many.
    """

    def __init__(self, *, width: int = 16) -> None:
        super().__init__()
        widths = (width, 2 * width, 4 * width)
        self.build_scales(1, widths)
        self.drawn = nn.Conv2d(width, 1, 1)
        self.label = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * widths[-1], 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of the label [P] and of each pixel [P, S, S]: images [P, 1, S, S]."""
        deepest, *_, finest = self.describe(
            F.avg_pool2d(images, 2)
        )  # [P, 4 D, S / 8, S / 8], [P, D, S / 2, S / 2]
        pixels = F.interpolate(self.drawn(finest), size=images.shape[-2:], mode="bilinear")
        inside = F.interpolate(pixels.detach().sigmoid(), size=deepest.shape[-2:], mode="area")
        weight = inside / inside.sum((2, 3), keepdim=True).clamp(min=1e-6)
        pooled = torch.cat([deepest.mean((2, 3)), (deepest * weight).sum((2, 3))], 1)
        return self.label(pooled).squeeze(1), pixels[:, 0]


def train_outlines(
    examples: Examples,
    train: np.ndarray,
    outlined: np.ndarray,
    *,
    seed: int,
    epochs: int = EPOCHS,
) -> OutlineNetwork:
    """Train on the labels of all images and the outlines of those that are ``outlined``, bool [n].

    The loss is the label's cross-entropy, and that of the pixels plus 1 - Dice. Batches, mirroring and optimiser are those of the
    other networks. Without an outline in the validation split the last epoch is kept.

    Raises:
        ValueError: if no outline is shown.
    """
    if not outlined.any():
        raise ValueError(
            "attention.evaluation.baselines must not hold 'unet' where no lesion outline is shown, got none among "
            f"{len(train)} training cores; drop it, or show outlines as conf/busi_outlined does"
        )
    is_outlined = np.zeros(len(examples.table), bool)
    is_outlined[train[outlined]] = True
    val = examples.rows("val")
    judged = np.array([row for row in val if examples.lesion[row].any()], dtype=np.int64)
    label = torch.from_numpy(examples.table["label"].to_numpy(np.float32))
    with drawn_on_the_cpu(seed):
        net = OutlineNetwork()
        best, kept = -1.0, net.state_dict()

        def loss_of(rows: np.ndarray, images: Tensor, is_mirrored: Tensor) -> Tensor:
            masks = torch.from_numpy(np.array(examples.lesion[rows]))
            masks = torch.where(is_mirrored[:, None, None], masks.flip(-1), masks)
            logits, pixels = net(images)
            known = torch.from_numpy(is_outlined[rows])
            loss = F.binary_cross_entropy_with_logits(logits, label[torch.from_numpy(rows)])
            if known.any():
                loss = loss + outline_loss(pixels[known][:, None], masks[known].float()).mean()
            return loss

        for _ in train_in_batches(net, loss_of, examples, train, seed=seed, epochs=epochs):
            if len(judged):
                drawn = draw_outlines(net.eval(), examples, judged)[1] > 0.5
                outlines = as_mask(examples.lesion, judged)
                dice = float(overlap(drawn[:, None], outlines)[0].mean())
                if dice > best:
                    best = dice
                    kept = {name: value.clone() for name, value in net.state_dict().items()}
                net.train()
    if len(judged):
        net.load_state_dict(kept)
    return net.eval()


@torch.no_grad()
def draw_outlines(
    net: OutlineNetwork, examples: Examples, rows: np.ndarray
) -> tuple[np.ndarray, Tensor]:
    """Return probabilities of the label, float64 [n], and of each pixel, [n, S, S]; 0 outside the region."""
    probs, drawn = [], []
    for start in range(0, len(rows), 64):
        some = rows[start : start + 64]
        logits, pixels = net(standardise(torch.from_numpy(np.array(examples.images[some]))))
        probs.append(logits.sigmoid().double().numpy())
        drawn.append(pixels.sigmoid() * torch.from_numpy(np.array(examples.region[some])))
    return np.concatenate(probs), torch.cat(drawn)


def as_mask(masks: np.ndarray, rows: np.ndarray) -> Tensor:
    """Return these rows of stored masks in memory of their own, bool [n, S, S]."""
    return torch.from_numpy(np.array(masks[rows]))
