"""Group a policy's parameters by component, for learning rates and gradient norms."""

from torch import nn

from grpo_pipeline.tasks.molecules.denoiser.graph_policy import GraphPolicy


def parameter_groups(policy: GraphPolicy) -> dict[str, list[nn.Parameter]]:
    """List the trainable parameters of each component, each parameter once.

    ``layers`` are those of the graph transformer, ``heads`` what predicts atoms, charges and bonds, ``embeddings`` everything
    before them: classes, cycles, time, size and conditions.
    """
    network = policy.denoiser
    modules = {"embeddings": network, "layers": network.layers, "heads": network.heads}
    inner = {id(p) for name in ("layers", "heads") for p in modules[name].parameters()}
    return {
        name: [
            p
            for p in module.parameters()
            if p.requires_grad and (name != "embeddings" or id(p) not in inner)
        ]
        for name, module in modules.items()
    }
