"""Draw the replies of a training by another engine than the project's own sampler."""
