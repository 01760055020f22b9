import pytest

from grpo_pipeline.core.storage.replacement import find_complete, replacing_folder


def fill(folder, text):
    with replacing_folder(folder) as partial:
        (partial / text).write_text(text)
        assert not (folder / text).exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path, error):
    folder = tmp_path / "deep" / "f"
    assert find_complete(folder) is None
    for text in ("old", "new"):
        fill(folder, text)
        assert [p.name for p in folder.iterdir()] == [text]
    with pytest.raises(error, match="stop"), replacing_folder(folder):
        raise error("stop")
    assert ([p.name for p in folder.parent.iterdir()], [p.name for p in folder.iterdir()]) == (["f"], ["new"])
    # A writer that died between its renames leaves the folder under its other name.
    folder.rename(folder.with_name("f.previous"))
    folder.with_name("f.partial-1").mkdir()
    assert (find_complete(folder) / "new").read_text() == "new"
    with pytest.raises(error, match="stop"), replacing_folder(folder):
        raise error("stop")
    assert (find_complete(folder) / "new").read_text() == "new"
    fill(folder, "newest")
    assert [p.name for p in find_complete(folder).iterdir()] == ["newest"]
    assert [p.name for p in folder.parent.iterdir()] == ["f"]
