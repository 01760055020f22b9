"""Cross-validation of a task: every example predicted once by a model that never saw its group, pooled without mixing scales."""
