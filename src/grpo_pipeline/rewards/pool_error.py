"""Declare the error of a pool that can measure no sample."""


class RewardPoolError(RuntimeError):
    """An error that prevents the measurement of rewards for every sample."""
