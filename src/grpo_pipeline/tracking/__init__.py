"""Experiment tracking: what a run writes to MLflow, and what it does when MLflow is not there.

``config`` reads mlflow.yml; ``store`` finds the store and asks whether it answers; ``writer`` is the one thread that talks to it;
``runs`` opens and ends runs; ``flatten``, ``metrics``, ``artifacts`` and ``process`` turn what the project has into what MLflow
takes; ``summary`` prints the end of a run. Only ``hooks.py`` knows Kedro's hooks, and only this package imports MLflow.
"""
