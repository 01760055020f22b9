"""Read the address of a store: whether it is a server's, and how it is shown without its password."""

from urllib.parse import urlsplit, urlunsplit


def is_server(uri: str) -> bool:
    """Return whether the store is behind HTTP."""
    return uri.startswith(("http://", "https://"))


def redact(uri: str) -> str:
    """Return the URI without user and password; nothing of one that cannot be read."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "an unreadable address"
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if "@" in parts.netloc
        else uri
    )
