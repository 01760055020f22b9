from dataclasses import replace

import pytest
from tiny_attention import make_examples
from tiny_grid import resolve_tiny

from grpo_pipeline.pipelines.data.attention.preparation import find_kit
from grpo_pipeline.pipelines.experiments.trials import engine
from grpo_pipeline.pipelines.experiments.trials.cells import Cell
from grpo_pipeline.pipelines.experiments.trials.engine import cell_digest

KIT, EXAMPLES = find_kit("attention"), make_examples()
SPLIT = dict(zip(EXAMPLES.table["core_id"], EXAMPLES.table["split"], strict=True))


def of(cell=Cell("grpo", 0), examples=EXAMPLES, **changes):  # noqa: B008 - frozen
    arm = resolve_tiny(**changes)[cell.arm]
    return cell_digest(KIT, arm, cell, examples)


def test_the_same_cell_has_the_same_digest_whatever_the_other_arms_are():
    assert of() == of()
    assert of() == of(other={"base": "grpo", "set": {"training": {"epochs": 1}}})
    assert of() == of(Cell("grpo", 0, split=SPLIT))


@pytest.mark.parametrize(
    "changed",
    [
        lambda: of(Cell("grpo", 1)),
        lambda: of(Cell("supervised", 0)),
        lambda: of(grpo={"base": "grpo", "set": {"algorithm": {"kl_weight": 0.002}}}),
        lambda: of(grpo={"base": "grpo", "set": {"reward": {"heatmap_weight": 0.1}}}),
        lambda: of(grpo={"base": "grpo", "set": {"training": {"epochs": 3}}}),
        lambda: of(examples=make_examples(seed=1)),
        lambda: of(Cell("grpo", 0, split=SPLIT | {"c00": "val"})),
        lambda: of(examples=replace(EXAMPLES, table=EXAMPLES.table.assign(split="train"))),
    ],
)
def test_whatever_decides_the_result_changes_the_digest(changed):
    assert changed() != of()


def test_other_code_changes_the_digest(monkeypatch):
    before = of()
    monkeypatch.setattr(engine, "source_digest", lambda: "other code")
    assert of() != before


def test_the_source_digest_reads_the_files(tmp_path, monkeypatch):
    package = tmp_path / "package"
    for name in engine.DECIDING:
        path = package / name if name.endswith(".py") else package / name / "a.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x = 1")
    monkeypatch.setattr(engine.grpo_pipeline, "__file__", str(package / "__init__.py"))
    fresh = engine.source_digest.__wrapped__
    before = fresh()
    assert fresh() == before
    (package / "tasks" / "a.py").write_text("x = 2")
    assert fresh() != before
