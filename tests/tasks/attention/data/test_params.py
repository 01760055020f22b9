import pytest
from pydantic import ValidationError

from grpo_pipeline.tasks.attention.data.cell_values import canonical_value
from grpo_pipeline.tasks.attention.data.split_params import SplitParams

SPLIT = {"seed": 0, "fractions": {"train": 0.6, "val": 0.15, "test": 0.25}, "single_class": "error"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colums": {}}, r"colums\n.*Extra inputs are not permitted"),
        ({"columns": {"lable": "x"}}, r"columns\.lable\n.*Extra inputs are not permitted"),
        ({"columns": {"clinical": ["age", "label"]}}, r"must not use the table's own column names, got \['label'\]"),
        ({"columns": {"clinical": ["age", "age"]}}, "must name each column once"),
        ({"label": {"positive": ["1"], "negative": ["1.0"]}}, r"got \['1'\] as both"),
        ({"label": {"positive": []}}, r"label\.positive"),
        ({"image_size": 8}, r"image_size\n"),
        (
            {"mask_values": {"lesion_mask": [1, 3]}, "columns": {"lesion_mask": None}},
            r"mask_values.lesion_mask must be null while columns.lesion_mask is null, got \[1, 3\]; map the column",
        ),
        ({"columns": {"clinical": ["spacing_mm"]}}, r"must not use the table's own column names, got \['spacing_mm'\]"),
        ({"volume": {"axis": 0, "take": "index"}}, "volume.index must be a number with take: index, got None"),
        ({"volume": {"axis": 0, "take": "middle", "index": 1}}, "volume.index must be null with take: middle, got 1"),
    ],
)
def test_bad_data_parameter_is_refused(data_params, changes, message):
    with pytest.raises(ValidationError, match=message):
        data_params(**changes)


def test_bad_split_parameter_is_refused():
    for changes, message in (
        ({"fractions": {"train": 0.6, "val": 0.2, "test": 0.25}}, "must add up to 1, got 1.05"),
        ({"fractions": {"train": 0.75, "val": 0.0, "test": 0.25}}, r"fractions\.val\n"),
        ({"sed": 1}, r"sed\n.*Extra inputs are not permitted"),
        ({"single_class": "ignore"}, r"single_class\n"),
    ):
        with pytest.raises(ValidationError, match=message):
            SplitParams.model_validate(SPLIT | changes)


TWO = {"classes": {"a": ["x"], "b": ["y"]}, "positive": ["b"]}


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"classes": {"a": ["x"]}, "positive": ["a"]}, r"classes must name at least two classes, got \['a'\]"),
        ({"classes": {"a": ["x"], "std": ["y"]}, "positive": ["a"]}, "must not be named"),
        ({"classes": {"a": ["1"], "b": ["1.0"]}, "positive": ["a"]}, r"must list a value once, got \['1'\] twice"),
        (
            {"classes": {"a": ["x"], "b": ["y"]}, "positive": ["c"]},
            r"must name some of the classes \['a', 'b'\], not all",
        ),
        ({"classes": {"a": ["x"], "b": ["y"]}, "positive": ["a", "b"]}, r"not all, got \['a', 'b'\]"),
        ({"classes": {"a": ["x"], "b": ["y"]}, "positive": ["b"], "negative": ["0"]}, "negative and above null with classes"),
        ({"classes": {"a": ["x"], "b": ["y"]}, "positive": ["a"], "ordinal": True}, r"highest grades .* such as \['b'\]"),
        ({"ordinal": True}, "ordinal must be false without classes"),
        ({"classes": {"a b": ["x"], "c": ["y"]}, "positive": ["c"]}, "should match pattern"),
        ({"several": True}, "several must be false without classes"),
        (TWO | {"none": ["z"]}, r"none must be null without several: true, got \['z'\]"),
        (TWO | {"several": True, "ordinal": True}, "several must be false with ordinal: true"),
        (TWO | {"several": True, "ordinal": True, "positive": ["a"]}, "several must be false with ordinal: true"),
        (TWO | {"several": True, "positive": ["a", "b"]}, "none must list the values .* where all of them are positive"),
        (TWO | {"several": True, "positive": ["a", "c"]}, "must name some of the classes"),
        (TWO | {"several": True, "none": ["X "]}, r"none must list no value of a finding, got \['x'\] as both"),
        (TWO | {"several": True, "classes": {"a": ["x"], "b": ["y", "Y"]}}, r"must list a value once, got \['y'\] twice"),
        (TWO | {"several": True, "classes": {"a": ["x;y"], "b": ["y"]}}, r"values without ';' with several: true, got \['x;y'\]"),
        (
            {"several": True, "positive": ["c0"], "classes": {f"c{i}": [f"v{i}"] for i in range(54)}},
            "at most 53 findings with several: true, got 54",
        ),
    ],
)
def test_bad_classes_are_refused(data_params, label, message):
    with pytest.raises(ValidationError, match=message):
        data_params(label={"positive": None, "negative": None} | label)


def test_a_switch_that_is_off_is_not_written(data_params):
    """Digests and descriptions of data sets without findings stay what they were."""
    label = data_params(label=TWO | {"negative": None}).label
    assert not {"several", "none"} & set(label.model_dump())
    assert set(label.scheme.model_dump()) == {"names", "positive", "ordinal"}
    told = label.model_copy(update={"several": True}).scheme
    assert type(told).model_validate(told.model_dump(mode="json")) == told


def test_values_that_are_the_same():
    for left, right in (("1", "1.0"), ("01", "1"), (" Yes", "yes"), ("True", "true")):
        assert canonical_value(left) == canonical_value(right)


def test_numbers_that_differ_in_the_seventh_digit_are_two_values():
    assert canonical_value("1.0000001") != canonical_value("1") == canonical_value("01.0") == canonical_value("1e0")
