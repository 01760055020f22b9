"""Experiment tracking: what a run writes to MLflow, and what it does when MLflow is not there.

``mlflow_config`` reads mlflow.yml, ``store`` finds the store and asks whether it answers; ``writer`` has the one thread that
talks to it; ``runs`` opens and ends runs; ``tracker`` tells them what a Kedro run does; ``flat_parameters``,
``logged_parameters``, ``metric_points``, ``comparison_scores`` and ``trial_runs`` turn what the project has into what MLflow
takes; ``summary`` prints the end of a run. Only ``hooks`` knows Kedro's hooks, and only this package imports MLflow.
"""
