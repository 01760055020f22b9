"""Experiment tracking: what a run writes to MLflow, and what it does when MLflow is not there.

``store`` reads mlflow.yml, finds the store and asks whether it answers; ``experiment`` has the one thread that talks to it;
``runs`` opens and ends runs; ``metrics`` and ``tracker`` turn what the project has into what MLflow takes; ``summary`` prints
the end of a run. Only ``hooks.py`` knows Kedro's hooks, and only this package imports MLflow.
"""
