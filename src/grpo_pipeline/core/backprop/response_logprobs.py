"""Log-probabilities of response tokens under a causal language model, or anything that is called like one."""

import inspect

import torch
from torch import Tensor, nn

from grpo_pipeline.core.groups import require_shape


def response_logprobs(
    model: nn.Module, prompts: Tensor, responses: Tensor, attention_mask: Tensor | None = None
) -> Tensor:
    """Score each response token given the prompt and the tokens before it.

        l_t = log softmax(logits at position T_p + t - 1)[response_t]

    The model is called once, on ``cat([prompts, responses])``. It returns logits [B, T_p + T_r, V], by themselves or as the
    attribute ``logits``. Position numbers are the model's own affair: one that counts padding on the left needs a wrapper.

    Args:
        model: in whatever mode it is.
        prompts: int64 [B, T_p], T_p >= 1; or [P, T_p], each for its B / P responses, which are adjacent rows.
        responses: int64 [B, T_r].
        attention_mask: [B, T_p + T_r], handed to the model as ``attention_mask``; None = not handed over.

    Returns:
        [B, T_r], in nats, with gradient.

    Raises:
        ValueError: for wrong shapes, or a model that cannot take the mask or returns no logits.
    """
    if (
        prompts.ndim != 2
        or responses.ndim != 2
        or 0 in (*prompts.shape, *responses.shape)
        or len(responses) % len(prompts)
    ):
        raise ValueError(
            f"prompts and responses must have shapes [B, T_p] and [B, T_r], got {list(prompts.shape)} and "
            f"{list(responses.shape)}; give each response its prompt, of at least one token, or each prompt as many adjacent "
            "responses"
        )
    prompts = prompts.repeat_interleave(
        len(responses) // len(prompts), dim=0
    )  # [P, T_p] -> [B, T_p]
    ids = torch.cat([prompts, responses], dim=1)  # [B, T_p + T_r]
    logits = _logits(model, ids, attention_mask)[:, prompts.shape[1] - 1 : -1]  # [B, T_r, V]
    return logits.gather(2, responses.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(dim=-1)


def _logits(model: nn.Module, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    output = model(ids, **_mask_argument(model, ids, attention_mask))
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(
            f"the model must return logits {[*ids.shape, 'V']}, got {got}; wrap it so that it does"
        )
    return logits


def _mask_argument(
    model: nn.Module, ids: Tensor, attention_mask: Tensor | None
) -> dict[str, Tensor]:
    if attention_mask is None:
        return {}
    require_shape("attention_mask", attention_mask, ids.shape, "cover prompt and response")
    parameters = inspect.signature(model.forward).parameters.values()
    if not any(p.name == "attention_mask" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise ValueError(
            f"the model must take attention_mask where one is given, got {type(model).__name__} without it; add the argument to "
            "forward, or leave the mask out"
        )
    return {"attention_mask": attention_mask}
