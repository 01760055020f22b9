"""Where independent implementations answer the same question differently, and what we do about it."""

from rows import Dispute

DISPUTES = [
    Dispute(
        "luspo, ratio of single decisions",
        ("trl", "luspo"),
        ("liger_kernel", "luspo"),
        "losses",
        "neither: luspo has the ratio of the sequence, where the two agree. TRL sums the masked decisions of a row; Liger "
        "multiplies each of them, padding included, by the row's length",
    ),
    Dispute(
        "KL in the loss, on-policy: k3 or ratio * k3",
        ("trl", "grpo + k3"),
        ("trl", "grpo + ratio_k3"),
        "on-policy losses",
        "both, by name (`estimator`). One value, two gradients. TRL corrects by default, Liger does not; both do as told. On "
        "average over the policy's samples, ratio * k3 has the gradient of the KL from policy to reference, k3 "
        "that of the KL from reference to policy",
    ),
    Dispute(
        "cispo: what the gradient passes through",
        ("trl", "cispo"),
        ("torchrl", "cispo"),
        "losses",
        "TRL, Liger and the paper: the capped ratio is a constant factor of log p, and no decision falls silent. torchrl "
        "differentiates the clamped ratio, whose gradient is 0 beyond the cap",
    ),
    Dispute(
        "GAE: the loop or the convolution",
        ("torchrl", "gae"),
        ("torchrl", "gae, vectorised"),
        "trajectories",
        "the loop, to rounding; the convolution drops small weights",
    ),
]
