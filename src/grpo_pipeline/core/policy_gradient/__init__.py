"""Policy gradients, from rewards to a loss: advantages, importance ratios, surrogates, reductions, KL and entropy."""
