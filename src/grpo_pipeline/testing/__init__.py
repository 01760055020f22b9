"""Check a user's task: ``check_task(task, data)`` raises a sentence about the first promise that it breaks."""

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
