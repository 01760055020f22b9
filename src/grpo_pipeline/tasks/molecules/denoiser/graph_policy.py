"""Join a denoiser with its noise; a decision of this policy is the step from z_t to z_{t-1}."""

from torch import Tensor, nn

from grpo_pipeline.core.rng import drawn_on_the_cpu
from grpo_pipeline.core.sampling.plackett_luce import tempered_logits
from grpo_pipeline.core.training.precision import at_least_float32
from grpo_pipeline.tasks.molecules.denoiser.denoiser import Denoiser
from grpo_pipeline.tasks.molecules.diffusion.noise import GraphNoise
from grpo_pipeline.tasks.molecules.diffusion.params import DenoiserParams, NoiseParams
from grpo_pipeline.tasks.molecules.graphs.components import Components
from grpo_pipeline.tasks.molecules.graphs.graph_prompts import GraphPrompts


class GraphPolicy(nn.Module):
    """Predicts x0 and steps backwards through the noise; the limit distributions are stored with the weights."""

    def __init__(self, denoiser: Denoiser, noise: GraphNoise) -> None:
        super().__init__()
        self.denoiser = denoiser
        self.noise = noise

    def x0_logits(
        self,
        noisy: Components[Tensor],
        prompts: GraphPrompts,
        t: Tensor,
        *,
        temperature: float = 1.0,
    ) -> Components[Tensor]:
        """Compute logits of x0 / temperature, in float32 at least.

        Args:
            noisy: z_t, integers: atoms [B, n], charges [B, n], bonds [B, M].
            prompts: sizes and conditions, B rows.
            t: int64 [B], 1..T.
            temperature: divides the logits, above 0; the same number in sampler and scorer.
        """
        dtype = self.denoiser.atom_embedding.weight.dtype
        logits: Components[Tensor] = self.denoiser(noisy, prompts, t.to(dtype) / self.noise.steps)
        return logits.each(lambda z: tempered_logits(at_least_float32(z), temperature))

    def step_log_probs(
        self,
        noisy: Components[Tensor],
        prompts: GraphPrompts,
        t: Tensor,
        *,
        temperature: float = 1.0,
    ) -> Components[Tensor]:
        """Compute log p(z_{t-1} | z_t) of every entry, [B, N, K] each; arguments as for ``x0_logits``."""
        return self.noise.reverse(
            self.x0_logits(noisy, prompts, t, temperature=temperature), noisy, t
        )


def build_policy(
    limits: Components[Tensor],
    noise: NoiseParams,
    denoiser: DenoiserParams,
    *,
    conditions: int = 0,
    seed: int,
) -> GraphPolicy:
    """Build a policy with fresh weights, float32 on the CPU; the global random state stays unchanged.

    Args:
        limits: limit distributions of the noise, see ``noise.limits_of``; their lengths are the sizes of the vocabularies.
        noise: parameters of the noise.
        denoiser: parameters of the network.
        conditions: F, the number of values that a prompt holds beside the size.
        seed: seed of the weights.
    """
    with drawn_on_the_cpu(seed):
        return GraphPolicy(
            Denoiser(denoiser, limits.each(len), conditions), GraphNoise(limits, noise)
        )
