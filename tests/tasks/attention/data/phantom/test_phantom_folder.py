import numpy as np
import pytest

from grpo_pipeline.tasks.attention.data.phantom.generate import core_files, empty_chunk, generate_cores, phantom_chunks
from grpo_pipeline.tasks.attention.data.phantom.patients import PhantomParams

CORES = list(generate_cores(PhantomParams(patients=3, cores_per_patient=(2, 2), image_size=32)))


@pytest.mark.parametrize(("chunk_size", "sizes"), [(1, [1] * 6), (3, [3, 3]), (4, [4, 2]), (6, [6]), (100, [6])])
def test_chunks_cover_the_cores_once_and_mark_first_and_last(chunk_size, sizes):
    chunks = list(phantom_chunks(CORES, chunk_size=chunk_size))
    assert [len(chunk.rows) for chunk in chunks] == sizes
    assert [chunk.is_first for chunk in chunks] == [True] + [False] * (len(sizes) - 1)
    assert [chunk.is_last for chunk in chunks] == [False] * (len(sizes) - 1) + [True]
    assert [name for chunk in chunks for name in chunk.rows["core_id"]] == [core.row["core_id"] for core in CORES]


def test_files_are_those_of_the_row():
    for core in CORES:
        files = core_files(core)
        named = [core.row[name] for name in ("image", "region_mask", "bag_mask", "lesion_mask") if core.row[name]]
        assert list(files) == named
        np.testing.assert_array_equal(files[core.row["bag_mask"]], core.needle)


def test_empty_chunk_is_first_and_last_of_a_users_own_data():
    chunk = empty_chunk()
    assert (chunk.files, len(chunk.rows), chunk.is_first, chunk.is_last, chunk.source) == ({}, 0, True, True, "manifest")
