"""Kedro pipelines: nodes are pure functions, and ``pipeline.py`` connects them."""
