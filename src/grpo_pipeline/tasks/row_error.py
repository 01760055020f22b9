"""Define the error of a row of the data; its text is the problem with the row."""


class RowError(ValueError):
    """A row that cannot be used; its text is the reason that goes into the quarantine."""
