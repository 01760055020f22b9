"""Name the run of this process: the record of artefacts, the comparison, the page and MLflow name the run by it."""

import uuid

_current = ""


def begin_run() -> str:
    """Give the run that begins an identity, which is not made from the time, and return it."""
    global _current
    _current = uuid.uuid4().hex[:12]
    return _current


def run_identity() -> str:
    """Return the identity of the run that began last in this process; empty where none did."""
    return _current
