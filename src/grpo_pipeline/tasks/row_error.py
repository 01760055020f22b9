"""What is wrong with one row of the data."""


class RowError(ValueError):
    """A row that cannot be used; its text is the reason that goes into the quarantine."""
