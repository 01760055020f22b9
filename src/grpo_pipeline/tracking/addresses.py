"""Read the address of a store: is it a server's, and how is it shown without its password?"""

from urllib.parse import urlsplit, urlunsplit


def is_server(uri: str) -> bool:
    """Check whether the store's address is that of a server (HTTP)."""
    return uri.startswith(("http://", "https://"))


def redact(uri: str) -> str:
    """Remove user and password from a URI; an unreadable one is replaced as a whole."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "an unreadable address"
    return (
        urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        if "@" in parts.netloc
        else uri
    )
