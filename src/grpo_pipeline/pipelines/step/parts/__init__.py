"""Parts that act in the step of an arm that has them, one a file."""
