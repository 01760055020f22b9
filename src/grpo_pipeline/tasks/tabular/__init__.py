"""Text lines and splits, shared by all tasks."""
