import base64

from kedro.io.core import Version
from matplotlib.figure import Figure

from grpo_pipeline.datasets.figure_folder import FigureFolderDataset

PNG = b"\x89PNG"


def test_figures_come_back_as_images_by_name(tmp_path):
    dataset = FigureFolderDataset(filepath=str(tmp_path / "forests"), version=Version(None, "v1"))
    dataset.save({"b.png": Figure(), "a.png": Figure(figsize=(1, 1))})
    found = dataset.load()
    assert list(found) == ["a.png", "b.png"]
    assert all(image.startswith(PNG) for image in found.values())
    assert found["a.png"] != found["b.png"]
    assert base64.b64decode(dataset.preview()) == found["a.png"]
    assert sorted(path.name for path in (tmp_path / "forests" / "v1" / "forests").iterdir()) == ["a.png", "b.png"]
