"""Take finished replies out of the batch that is being written, prompt by prompt.

The batch is a table of P' prompts and G' places. A prompt leaves when all of its replies are finished; the table becomes as
narrow as the prompt with the most unfinished replies, so that prompts go on sharing their keys and values. A prompt with fewer
keeps some finished replies in its last places: they are carried along and written nowhere.
"""

from typing import NamedTuple

from torch import Tensor

# Moving the cache costs about a step: it must save a good part of all steps to come.
WORTH = 0.75


class Places(NamedTuple):
    """Places that stay when finished samples leave: prompts int64 [P'] and, for each of them, places int64 [P', G']."""

    prompts: Tensor
    places: Tensor

    def take(self, table: Tensor) -> Tensor:
        """Return the kept part [P', G', ...] of a table [P, G, ...]."""
        return table[self.prompts[:, None], self.places]


def compacted(is_open: Tensor) -> Places | None:
    """Return what stays, or None where too little would be saved.

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
