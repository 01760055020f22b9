"""Remove finished replies from the batch in progress, prompt by prompt.

The batch is a table of P' prompts and G' places. A prompt leaves when all of its replies are finished. The table becomes as
narrow as the prompt with the most unfinished replies, so that prompts still share their keys and values. A prompt with fewer
keeps some finished replies in its last places, whose further tokens are dropped.
"""

from typing import NamedTuple

from torch import Tensor

# Moving the cache costs about a step, so it must save a good part of the remaining steps.
WORTH = 0.75


class Places(NamedTuple):
    """Places that remain when finished replies leave: prompts int64 [P'] and, for each prompt, places int64 [P', G']."""

    prompts: Tensor
    places: Tensor

    def take(self, table: Tensor) -> Tensor:
        """Select the kept part [P', G', ...] of a table [P, G, ...]."""
        return table[self.prompts[:, None], self.places]


def compacted(is_open: Tensor) -> Places | None:
    """Choose the remaining places, or None if too little would be saved.

    Args:
        is_open: bool [P, G], True where a reply is not finished; at least one is.
    """
    prompts = is_open.any(dim=1).nonzero().flatten()  # [P']
    width = int(is_open.sum(dim=1).max())
    if len(prompts) * width > WORTH * is_open.numel():
        return None
    # A stable sort brings the unfinished replies of each prompt to the front, in their order.
    places = (
        is_open[prompts].to(prompts.dtype).argsort(dim=1, descending=True, stable=True)[:, :width]
    )  # [P', G']
    return Places(prompts, places)
