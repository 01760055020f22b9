"""Names that users choose become files that every file system keeps apart."""

import re

from hypothesis import given
from hypothesis import strategies as st

from grpo_pipeline.tasks.attention.data.image_folder import file_names


def test_plain_names_stay():
    assert file_names(["P0001-1", "S01.3", "a_b"]) == ["P0001-1", "S01.3", "a_b"]


def test_unsafe_names_are_replaced_and_told_apart():
    # First 10 digits of sha256("../etc/passwd"), computed with sha256sum.
    names = file_names(["../etc/passwd", ".._etc_passwd", "a/b", "a:b", "", "CON", "con.png", "x" * 300, "ü", "é", "end."])
    assert names[0] == "___etc_passwd-7fef78f534"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name) for name in names)


def test_names_that_differ_by_case_alone_are_told_apart():
    names = file_names(["Core", "core", "other"])
    assert names[2] == "other"
    assert names[0].casefold() != names[1].casefold()


@given(st.lists(st.text(max_size=30), unique=True))
def test_different_names_stay_different_whatever_they_are(texts: list[str]):
    names = [name.casefold() for name in file_names(texts)]
    assert len(set(names)) == len(texts)
    assert not [name for name in names if not re.fullmatch(r"[a-z0-9_][a-z0-9._-]{0,90}", name) or name.endswith(".")]
