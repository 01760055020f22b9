"""Track experiments: entries of a run in MLflow, and the behaviour of a run without MLflow.

``mlflow_config`` reads mlflow.yml. ``store`` finds the store and checks that it answers. ``writer`` has the only thread that
talks to it. ``runs`` opens and ends runs; ``tracker`` reports a Kedro run to them. ``flat_parameters``, ``logged_parameters``,
``metric_points``, ``comparison_scores`` and ``trial_runs`` convert values of the project to MLflow's. ``summary`` prints the end
of a run. Only ``hooks`` uses Kedro's hooks, and only this package imports MLflow.
"""
