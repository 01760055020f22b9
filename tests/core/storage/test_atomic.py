import pytest

from grpo_pipeline.core.storage.files import find_complete, replacing_folder


def fill(folder, text):
    with replacing_folder(folder) as partial:
        (partial / "x").write_text(text)


def test_replaces_the_whole_folder(tmp_path):
    folder = tmp_path / "deep" / "f"
    fill(folder, "old")
    with replacing_folder(folder) as partial:
        (partial / "y").write_text("new")
        assert (folder / "x").read_text() == "old"
    assert [p.name for p in folder.iterdir()] == ["y"]
    assert [p.name for p in folder.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_inside_leaves_the_old_folder(tmp_path, error):
    folder = tmp_path / "f"
    fill(folder, "old")

    def fail():
        with replacing_folder(folder) as partial:
            (partial / "x").write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert (folder / "x").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_finds_the_previous_folder_of_a_writer_that_died_between_its_renames(tmp_path):
    folder = tmp_path / "f"
    assert find_complete(folder) is None
    fill(folder, "old")
    folder.rename(tmp_path / "f.previous")
    (tmp_path / "f.partial-1").mkdir()
    assert (find_complete(folder) / "x").read_text() == "old"
    with pytest.raises(ValueError, match="stop"), replacing_folder(folder):
        raise ValueError("stop")
    assert (find_complete(folder) / "x").read_text() == "old"
    fill(folder, "new")
    assert (find_complete(folder) / "x").read_text() == "new"
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
