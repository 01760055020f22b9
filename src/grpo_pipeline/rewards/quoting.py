"""Quote an error in a sentence."""

MAX_CAUSE = 300


def quote_error(error: BaseException) -> str:
    """Write class and message of an error in one line, cut if it is long."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:MAX_CAUSE]
