"""Cross-validation: every example is predicted once, by a model that never saw its group."""
