"""Say in one sentence why a file cannot be used."""


class UnreadableFileError(ValueError):
    """A file cannot be used; the message is one sentence that names the path below the data root."""


def describe(error: BaseException) -> str:
    """Return the message of an error on one line."""
    return " ".join(str(error).split()) or type(error).__name__
