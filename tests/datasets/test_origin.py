"""An environment whose data are absent says where to get them."""

from pathlib import Path

import pytest
import yaml
from kedro.io import DatasetError

from grpo_pipeline.datasets.origin import where_to_get
from grpo_pipeline.datasets.raw_file import RawFileDataset
from grpo_pipeline.runs.run_config_loader import RunConfigLoader
from grpo_pipeline.settings import CONFIG_LOADER_ARGS
from grpo_pipeline.tasks.attention.pipelines.image_folder import ImageFolderDataset
from grpo_pipeline.tasks.dialogue.pipelines.folder_dataset import DialogueFolderDataset

ROOT = Path(__file__).resolve().parents[2]
GLOBALS = {file.parent.name: yaml.safe_load(file.read_text(encoding="utf-8")) for file in sorted(ROOT.glob("conf/*/globals.yml"))}
# A root outside of the project: its data are not made by a run.
OUTSIDE = [(env, name.removesuffix("_root")) for env, found in GLOBALS.items() for name in found if name.endswith("_root")]
DATASETS = {
    "attention": lambda root, metadata: ImageFolderDataset(filepath=root, metadata=metadata),
    "dialogue": lambda root, metadata: DialogueFolderDataset(filepath=root, metadata=metadata),
    "molecules": lambda root, metadata: RawFileDataset(filepath=root, file="a.smi", task="molecules", metadata=metadata),
}


@pytest.mark.parametrize(("env", "task"), OUTSIDE, ids="-".join)
def test_an_environment_with_data_of_others_says_where_they_are(env: str, task: str) -> None:
    assert len(OUTSIDE) >= 5
    origin = GLOBALS[env][f"{task}_origin"]
    assert "https://" in origin or "docs/" in origin
    entry = RunConfigLoader(str(ROOT / "conf"), env=env, **CONFIG_LOADER_ARGS)["catalog"][f"{task}.raw"]
    assert entry["metadata"]["origin"] == origin
    assert entry["metadata"]["kedro-viz"]["layer"] == "01_raw"


@pytest.mark.parametrize("task", DATASETS)
@pytest.mark.parametrize("root", ["absent", "empty"])
def test_the_sentence_about_absent_data_ends_with_where_to_get_them(tmp_path: Path, task: str, root: str) -> None:
    (tmp_path / "empty").mkdir()
    for metadata, end in (({"origin": "the archive, x.org"}, "; the data of this environment: the archive, x.org"), (None, "")):
        with pytest.raises(DatasetError) as refused:
            DATASETS[task](str(tmp_path / root), metadata).load()
        said = str(refused.value)
        assert said.endswith(end)
        assert ("the data of this environment" in said) == bool(end)
    assert where_to_get({"kedro-viz": {"layer": "01_raw"}, "origin": None}) == ""
