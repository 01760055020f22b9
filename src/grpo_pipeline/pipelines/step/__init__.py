"""One training step as a Kedro pipeline, the same for every task."""
