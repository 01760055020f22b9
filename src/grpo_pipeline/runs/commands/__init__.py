"""Define the commands of ``grpo``: each is imported when it is called, and maps onto a pipeline, a session or a function."""
