"""Define the error of one row of the data: its text is what is wrong with it."""


class RowError(ValueError):
    """A row that cannot be used; its text is the reason that goes into the quarantine."""
