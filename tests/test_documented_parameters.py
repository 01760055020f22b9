"""Every YAML block of the documents is an environment that passes: over ``smoke``, with the task that it names built from it.

A block that needs what a language model brings (a table, a folder of weights) says so above it, ``<!-- needs: a manifest -->``,
and is checked against the models alone. What a block leaves out is that of ``smoke`` and ``base``.
"""

import re
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any, NamedTuple

import pytest
import yaml
from parameter_models import BUILDERS, ROOT, TASKS, read_sections

from grpo_pipeline.pipelines.parameter_merge import merge
from grpo_pipeline.runs.config_loader import ReplacingConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tracking.mlflow_config import parse_config

BLOCK = re.compile(
    r"(?:^ *<!-- needs: (?P<needs>[^\n]+?) -->\n\n?)?^(?P<indent> *)```yaml\n(?P<text>.*?)^(?P=indent)```$",
    re.DOTALL | re.MULTILINE,
)
# The blocks of adding_a_task.md are files of an example that test_example_task.py runs.
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.name != "adding_a_task.md"]
DOCUMENTS = [ROOT / "README.md", *PAGES]


class Block(NamedTuple):
    """A YAML block of a document, and what it says that it needs."""

    document: str
    text: str
    needs: str | None

    @property
    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.text)
        return found


def blocks_of(document: Path) -> list[Block]:
    found = BLOCK.finditer(document.read_text(encoding="utf-8"))
    return [Block(document.name, dedent(match["text"]), match["needs"]) for match in found]


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
NAMES = [f"{block.document}:{number}" for number, block in enumerate(BLOCKS)]


def make_environment(conf: Path, block: Block) -> set[str]:
    """Write ``base`` and the environment ``mine``: smoke with the block; return the tasks whose parameters it changes.

    Parameters of tasks that the block does not name are left out: reading them takes most of the time.
    """
    content = block.content
    tasks = content.keys() & TASKS.keys()
    others = TASKS.keys() - {name.partition("_")[0] for name in content}
    below = content.get("extends")  # such an environment is whole as it stands
    for name, own in (("base", "base"), (below, below) if below else ("smoke", "mine")):
        shutil.copytree(ROOT / "conf" / name, conf / own, ignore=shutil.ignore_patterns(*others))
    if tasks:
        assert content.keys() == tasks, f"parameters of a task stand alone, got {sorted(content)}"
        for task in tasks:
            written: dict[str, Any] = {}
            for name in ("base", "mine"):
                for file in sorted((conf / name / task).glob("parameters*.yml")):
                    written = merge(written, yaml.safe_load(file.read_text())[task])
            for file in (conf / "mine" / task).glob("parameters*.yml"):
                file.unlink()
            (conf / "mine" / f"parameters_{task}.yml").write_text(yaml.safe_dump({task: merge(written, content[task])}))
    elif content.keys() & {"server", "tracking", "ui"}:
        (conf / "mine/mlflow.yml").write_text(block.text)
        parse_config(ReplacingConfigLoader(str(conf), env="mine", **CONFIG_LOADER_ARGS)["mlflow"])
    else:
        read = "".join(file.read_text() for file in (ROOT / "conf/base").rglob("*.yml"))
        unread = [name for name in content if f"globals:{name}" not in read and name != "extends"]
        assert not unread, "nothing reads such a global"
        file = conf / "mine/globals.yml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(yaml.safe_dump(content if below else yaml.safe_load(file.read_text()) | content))
        tasks = {name.partition("_")[0] for name in content} & TASKS.keys()
    return tasks


def test_there_are_blocks() -> None:
    written = sum(document.read_text(encoding="utf-8").count("```yaml") for document in DOCUMENTS)
    assert len(BLOCKS) == written > 15


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_a_block_is_an_environment(block: Block, tmp_path: Path) -> None:
    for task in sorted(make_environment(tmp_path, block)):
        read = read_sections(tmp_path, "mine", task)
        if block.needs is None:
            BUILDERS[task](read)


def test_a_block_that_does_not_fit_is_found(tmp_path: Path) -> None:
    """The test above can fail: on a name that is unknown, and on a reward that nothing is left of."""
    wrong = Block("here", "dialogue: {reward: {f1: null, rouge_l: null, bleu: null}}", None)
    make_environment(tmp_path, wrong)
    with pytest.raises(ValueError, match="a reward must have a term, got none"):
        read_sections(tmp_path, "mine", "dialogue")
