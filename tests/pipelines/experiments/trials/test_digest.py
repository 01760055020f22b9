from dataclasses import replace
from pathlib import Path

import pytest
from tiny_attention import make_examples
from tiny_grid import resolve_tiny

import grpo_pipeline
from grpo_pipeline.pipelines.experiments.trials import engine
from grpo_pipeline.pipelines.experiments.trials.engine import trial_digest
from grpo_pipeline.pipelines.experiments.trials.records import Trial
from grpo_pipeline.pipelines.experiments.trials.setups import find_setup

PACKAGE = Path(grpo_pipeline.__file__).parent
KIT, EXAMPLES = find_setup("attention"), make_examples()
SPLIT = dict(zip(EXAMPLES.table["core_id"], EXAMPLES.table["split"], strict=True))


def of(trial=Trial("grpo", 0), examples=EXAMPLES, **changes):  # noqa: B008 - frozen
    arm = resolve_tiny(**changes)[trial.arm]
    return trial_digest(KIT, arm, trial, examples)


@pytest.mark.parametrize(
    "changed",
    [
        lambda: of(Trial("grpo", 1)),
        lambda: of(Trial("supervised", 0)),
        lambda: of(grpo={"base": "grpo", "set": {"algorithm": {"kl_weight": 0.002}}}),
        lambda: of(grpo={"base": "grpo", "set": {"reward": {"heatmap_weight": 0.1}}}),
        lambda: of(grpo={"base": "grpo", "set": {"training": {"epochs": 3}}}),
        lambda: of(examples=make_examples(seed=1)),
        lambda: of(Trial("grpo", 0, split=SPLIT | {"c00": "val"})),
        lambda: of(examples=replace(EXAMPLES, table=EXAMPLES.table.assign(split="train"))),
    ],
)
def test_whatever_decides_the_result_changes_the_digest_and_other_arms_do_not(changed):
    same = of(), of(other={"base": "grpo", "set": {"training": {"epochs": 1}}}), of(Trial("grpo", 0, split=SPLIT))
    assert set(same) == {of()}
    assert changed() != of()


def test_the_digest_reads_shared_code_and_the_tasks_own_folder_alone(monkeypatch):
    read, before = set(), of()

    def recorded(package, names, *, salt=""):
        for name in names:
            path = package / name
            read.update([path] if path.is_file() else path.rglob("*.py"))
        return salt

    with monkeypatch.context() as patch:
        patch.setattr(engine, "digest_of_sources", recorded)
        engine.source_digest.__wrapped__("attention")
    found = {str(path.relative_to(PACKAGE)) for path in read}
    assert {"core/types.py", "tasks/base.py", "tasks/attention/task.py", "pipelines/data/attention/preparation.py"} <= found
    assert not [name for name in found if "molecules" in name or "dialogue" in name]
    assert not [name for name in found if name.startswith(("pipelines/reporting", "pipelines/evaluation", "tracking"))]
    monkeypatch.setattr(engine, "source_digest", lambda task: f"other code of {task}")
    assert of() != before
