"""Define the error of a file that cannot be used."""


class UnreadableFileError(ValueError):
    """A file that cannot be used; the message is a sentence that names the path below the data root."""


def describe(error: BaseException) -> str:
    """Write the message of an error on a single line."""
    return " ".join(str(error).split()) or type(error).__name__
