"""Count the nodes of the graph of computation behind a tensor: what is kept until the backward pass."""

from torch import Tensor


def nodes_behind(out: Tensor) -> int:
    """Return the number of nodes that hang on a tensor, one for each leaf among them."""
    seen, ahead = set(), [out.grad_fn]
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += [after for after, _ in node.next_functions if after is not None]
    return len(seen)
