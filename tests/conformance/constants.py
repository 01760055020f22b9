"""The constants that our functions and the oracles are called with."""

CLIP_LOW = 0.2
CLIP_HIGH = 0.28
DELTA = 1.5
RATIO_CAP = 2.0
TAU_POSITIVE = 1.0
TAU_NEGATIVE = 1.05
KL_WEIGHT = 0.04
# How much longer than its longest row a batch might have been: L_max of the reduction "constant".
EXTRA_LENGTH = 3
# The number of valid decisions of an optimiser step of which a case is one micro-batch.
STEP_DENOMINATOR = 97.0
# Added to standard deviations; a constant in TRL.
EPS = 1e-4
# Clip of gmpo, in the logarithm of the ratio.
LOG_CLIP = 0.4
# Share of decisions that kl_cov lets pay, and what they pay.
COV_SHARE = 0.25
COV_WEIGHT = 0.7
# Bounds of clip_cov, and a share so large that every decision between them is taken: the oracle draws among them.
COV_LOW = 0.3
COV_HIGH = 3.0
COV_ALL = 0.99
# Share of decisions that teach, those of largest entropy.
TOP_ENTROPY = 0.5
# Limits of the sampler.
TOP_K = 6
TOP_P = 0.8
