"""A name that nothing reads is refused, and what was meant is said."""

import pytest

from grpo_pipeline.runs.parameters import check_names

BASE = {"seed": 0, "resume": "never", "task": {"data": {"root": "x"}, "training": {"epochs": 1}}}
FILES = [BASE, {"task": {"other": {"a": 1}}}]
READ = ["task.arm.algorithm", "seed"]
OTHERS = ["task_folder"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"tusk": {"data": {}}}, "tusk must be a parameter of this project, got an unknown name; did you mean task?"),
        ({"task": {"trainin": {"epochs": 2}}}, "task.trainin must be .*; did you mean task.training?"),
        ({"sede": 1}, "sede must be .*; did you mean seed?"),
        ({"task_foldr": "x"}, "task_foldr must be .*; did you mean task_folder?"),
        ({"quite_else": 1}, "quite_else must be .*; remove it or correct its name"),
        ({"resume": True}, "resume must be never or auto, got True; "),
    ],
)
def test_unknown_names(given, text):
    with pytest.raises(ValueError, match=text.replace("?", r"\?")):
        check_names(BASE | given, FILES, READ, others=OTHERS)


def test_known_names():
    given = {
        "seed": 3,
        "_anchor": {"a": 1},
        "resume": "auto",
        "task": {"arm": {"algorithm": 1}, "data": {"wrong": 1}, "other": {"b": 2}},
    }
    check_names(given, FILES, READ, others=OTHERS)
