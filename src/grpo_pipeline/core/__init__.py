"""The algorithm of hybrid supervised and GRPO learning on torch alone; no module here knows a task, Kedro or MLflow."""
