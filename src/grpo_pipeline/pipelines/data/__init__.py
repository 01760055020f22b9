"""Pipelines of each task's own data, from raw files to model input and the task object."""
