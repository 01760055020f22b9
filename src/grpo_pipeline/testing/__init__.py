"""Check a task of one's own: ``check_task(task, data)`` says in one sentence what the first broken promise is."""

from grpo_pipeline.testing.check import CHECKS, QUICK, check_quickly, check_task
from grpo_pipeline.testing.subject import Check, Subject, TaskContractError, subject_of

__all__ = [
    "CHECKS",
    "QUICK",
    "Check",
    "Subject",
    "TaskContractError",
    "check_quickly",
    "check_task",
    "subject_of",
]
