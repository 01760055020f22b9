"""Run SAM's two-way transformer on token lists of different lengths: a token that is absent influences nothing.

``transformers`` masks no token: neither in the attention among tokens nor in that from the image to them. This walks the same
layers with the same weights and gives both a mask; where all tokens are there the numbers are those of its own ``forward``.
"""

from typing import Any

import torch
from torch import Tensor


def two_way(
    transformer: Any, tokens: Tensor, image: Tensor, positions: Tensor, is_token: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the transformer's layers with absent tokens masked.

    Args:
        transformer: a ``SamTwoWayTransformer``.
        tokens: [P, G, T, C]; what stands in an absent one must be finite.
        image: [P*G, C, h, w].
        positions: [P*G, C, h, w], positional encoding of the cells.
        is_token: bool [P, G, T], True for tokens that are there; at least one per set.

    Returns:
        tokens [P, G, T, C], to be read only where they are there, and image [P*G, 1, h*w, C].
    """
    keys, key_positions = (x.flatten(2).transpose(1, 2).unsqueeze(1) for x in (image, positions))
    mask = torch.zeros(is_token.shape, dtype=tokens.dtype, device=tokens.device).masked_fill(
        ~is_token, -torch.inf
    )
    mask = mask.flatten(0, 1)[:, None, None]
    queries = tokens
    for layer in transformer.layers:
        queries, keys = _layer(layer, queries, keys, (tokens, key_positions), mask)
    attended, _ = transformer.final_attn_token_to_image(
        query=queries + tokens, key=keys + key_positions, value=keys
    )
    return transformer.layer_norm_final_attn(queries + attended), keys


def _layer(
    layer: Any, queries: Tensor, keys: Tensor, positions: tuple[Tensor, Tensor], mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Run one ``SamTwoWayAttentionBlock``; positions of tokens and cells, mask [N, 1, 1, T] of the tokens as keys."""
    of_queries, of_keys = positions
    if layer.skip_first_layer_pe:
        queries, _ = layer.self_attn(
            query=queries, key=queries, value=queries, attention_similarity=mask
        )
    else:
        query = queries + of_queries
        attended, _ = layer.self_attn(
            query=query, key=query, value=queries, attention_similarity=mask
        )
        queries = queries + attended
    queries = layer.layer_norm1(queries)
    attended, _ = layer.cross_attn_token_to_image(
        query=queries + of_queries, key=keys + of_keys, value=keys
    )
    queries = layer.layer_norm2(queries + attended)
    queries = layer.layer_norm3(queries + layer.mlp(queries))
    attended, _ = layer.cross_attn_image_to_token(
        query=keys + of_keys, key=queries + of_queries, value=queries, attention_similarity=mask
    )
    return queries, layer.layer_norm4(keys + attended)
