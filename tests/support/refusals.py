"""A table of calls that are refused, as a test with a case for each line."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

Call = Callable[..., Any]


def refuses(*cases: tuple[Any, str], by: Call | None = None, error: type[Exception] = ValueError) -> Callable[[Any, str], None]:
    """Return the test that each call ends with an error whose sentence matches.

    Args:
        cases: a call without arguments, and a pattern of the sentence; with ``by``, its arguments (keywords, or the only one).
        by: the function that is called.
        error: of this type.
    """

    @pytest.mark.parametrize(("given", "message"), cases)
    def test(given: Any, message: str) -> None:
        arguments = given if isinstance(given, Mapping) else {}
        call = given if by is None else partial(by, **arguments) if arguments else partial(by, given)
        with pytest.raises(error, match=message):
            call()

    return test
