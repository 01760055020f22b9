"""Whether lesion outlines taught the model is read off the data, not assumed."""

from grpo_pipeline.pipelines.data.attention.report import oracle_arms, outline_sentence


def test_it_says_how_many_outlines_were_shown() -> None:
    said = outline_sentence({"usable": 647, "lesion_masks": 647, "bags_that_are_the_lesion_outline": 640})
    assert said.startswith(
        "In 640 of 647 images the lesion outline is the bag mask too: the losses of the decoder and of the heatmap"
    )
    assert "never shown" not in said


def test_never_shown_stands_only_where_there_are_outlines_apart_from_the_bag() -> None:
    assert outline_sentence({"usable": 9, "lesion_masks": 4, "bags_that_are_the_lesion_outline": 0}) == (
        "The lesion outline was never shown to the model."
    )
    assert outline_sentence({"usable": 9, "lesion_masks": 0, "bags_that_are_the_lesion_outline": 0}) == ""


def test_an_arm_whose_points_come_from_the_outlines_has_seen_them() -> None:
    parameters = {"attention": {"supervised": {"algorithm": {"proposal": "oracle"}}, "grpo": {"algorithm": {}}, "training": {}}}
    arms = oracle_arms(["supervised", "grpo", "more"], parameters, task="attention")
    assert arms == ["supervised"]
    drawn = "The points of supervised were drawn from lesion outlines in training."
    assert outline_sentence({"usable": 9, "lesion_masks": 4, "bags_that_are_the_lesion_outline": 0}, arms) == drawn
    said = outline_sentence({"usable": 9, "lesion_masks": 4, "bags_that_are_the_lesion_outline": 2}, arms)
    assert said.startswith("In 2 of 9 images")
    assert said.endswith(drawn)
