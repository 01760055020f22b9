"""Kedro hooks: what the project does at the moments of a run, one module for each concern."""
