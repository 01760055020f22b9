"""Network of the attention task: SAM, the policy that chooses points, and the class decoders."""
