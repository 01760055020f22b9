"""The session: a Kedro session that ends cleanly on Ctrl-C and SIGTERM."""

from kedro.framework.session import KedroSession


class TrackedSession(KedroSession):
    """A session whose hooks learn that it was interrupted."""
