"""Train a small convolutional network on whole images, with average pooling or with gated attention pooling."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from grpo_pipeline.core.rng import Stream, drawn_on_the_cpu, numpy_generator
from grpo_pipeline.tasks.attention.batch import standardise
from grpo_pipeline.tasks.attention.data.examples import Examples

EPOCHS, BATCH_SIZE, LEARNING_RATE, WEIGHT_DECAY = 30, 16, 1e-3, 1e-2
"""Of the networks."""


class WholeImageNetwork(nn.Module):
    """Five convolutions, of which a cell of the map sees 31 pixels, then one logit.

    It is read from the mean of the map, or from its mean weighted by gated attention.

    Args:
        attends: whether cells are weighted.
        width: channels of the first layer.
    """

    def __init__(self, *, attends: bool, width: int = 16) -> None:
        super().__init__()
        sizes = (1, width, 2 * width, 4 * width, 4 * width)
        self.body = nn.Sequential(
            *(
                layer
                for inputs, outputs in pairwise(sizes)
                for layer in (
                    nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                    nn.GroupNorm(8, outputs),
                    nn.ReLU(),
                )
            ),
            nn.Conv2d(sizes[-1], sizes[-1], 1),
            nn.ReLU(),
        )
        self.gate = nn.Conv2d(sizes[-1], 2 * width, 1) if attends else None
        self.content = nn.Conv2d(sizes[-1], 2 * width, 1) if attends else None
        self.attention = nn.Conv2d(2 * width, 1, 1) if attends else None
        self.label = nn.Sequential(nn.Dropout(0.3), nn.Linear(sizes[-1], 1))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [P] and the attention of the map's cells [P, h, w], log-probabilities: images [P, 1, S, S]."""
        features = self.body(images)  # [P, C, h, w]
        n, _, height, width = features.shape
        scores = features.new_zeros(n, height * width)
        if self.attention is not None and self.gate is not None and self.content is not None:
            hidden = self.content(features).tanh() * self.gate(features).sigmoid()
            scores = self.attention(hidden).flatten(1)
        attention = scores.log_softmax(1)  # [P, h * w]
        pooled = (features.flatten(2) * attention.exp()[:, None]).sum(2)  # [P, C]
        return self.label(pooled).squeeze(1), attention.reshape(n, height, width)


def train_network(
    examples: Examples, train: np.ndarray, *, seed: int, attends: bool, epochs: int = EPOCHS
) -> WholeImageNetwork:
    """Train on the labels with mirrored images, AdamW and a cosine schedule; leaves the global random state as it was."""
    label = torch.from_numpy(examples.table["label"].to_numpy(np.float32))
    with drawn_on_the_cpu(seed):
        net = WholeImageNetwork(attends=attends)

        def loss_of(rows: np.ndarray, images: Tensor, is_mirrored: Tensor) -> Tensor:
            of_rows = label[torch.from_numpy(rows)]
            return F.binary_cross_entropy_with_logits(net(images)[0], of_rows)

        for _ in train_in_batches(net, loss_of, examples, train, seed=seed, epochs=epochs):
            pass
    return net.eval()


def train_in_batches(
    net: nn.Module,
    loss_of: Callable[[np.ndarray, Tensor, Tensor], Tensor],
    examples: Examples,
    train: np.ndarray,
    *,
    seed: int,
    epochs: int,
) -> Iterator[int]:
    """Train with mirrored images, AdamW and a cosine schedule; yields the number of each epoch that is done.

    Args:
        net: in training mode.
        loss_of: rows [n], their images [n, 1, S, S] and bool [n], which of them are mirrored -> the loss.
        examples: the data set.
        train: row numbers to learn from.
        seed: of the batches and of the mirroring.
        epochs: passes over them.
    """
    optimizer = torch.optim.AdamW(net.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    batches = -(-len(train) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * batches)
    order = numpy_generator(seed, Stream.BASELINES)
    for epoch in range(epochs):
        shuffled = order.permutation(train)
        for start in range(0, len(train), BATCH_SIZE):
            rows = shuffled[start : start + BATCH_SIZE]
            images = standardise(torch.from_numpy(np.array(examples.images[rows])))
            is_mirrored = torch.from_numpy(order.random(len(rows)) < 0.5)
            images = torch.where(is_mirrored[:, None, None, None], images.flip(-1), images)
            loss = loss_of(rows, images, is_mirrored)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
        yield epoch


@torch.no_grad()
def apply_network(
    net: WholeImageNetwork, examples: Examples, rows: np.ndarray, *, grid: int
) -> tuple[np.ndarray, Tensor]:
    """Return probabilities, float64 [n], and the attention on a grid x grid map, [n, V]."""
    probs, maps = [], []
    for start in range(0, len(rows), 64):
        images = standardise(torch.from_numpy(np.array(examples.images[rows[start : start + 64]])))
        logits, attention = net(images)
        probs.append(logits.sigmoid().double().numpy())
        spread = F.interpolate(attention[:, None], (grid, grid), mode="bilinear")
        maps.append(spread[:, 0].flatten(1))
    return np.concatenate(probs), torch.cat(maps)
