"""Surrogates of the policy's loss, a file each: its parameters, its formula and what its bounds hold back."""
