"""Name the run of this process: the record of artefacts, the comparison, the page and MLflow name the run by it."""

import uuid

_current = ""


def begin_run() -> str:
    """Give the beginning run a random identity, and return it."""
    global _current
    _current = uuid.uuid4().hex[:12]
    return _current


def run_identity() -> str:
    """Name the identity of the last run that began in this process; "" if there is none."""
    return _current
