from grpo_pipeline.statistics.wording import judge, signed


def test_the_interval_decides():
    words = {"above": "better", "below": "worse"}
    assert judge({"ci95": [0.1, 0.2]}, **words) == "better"
    assert judge({"ci95": [-0.2, -0.1]}, **words) == "worse"
    assert judge({"ci95": [-0.1, 0.2]}, **words) == "no difference shown"
    assert judge({"ci95": [0.9, 1.2]}, **words, neutral=1.0) == "no difference shown"


def test_a_difference_has_its_sign():
    assert signed({"value": 0.0123, "ci95": [-0.02, 0.041]}) == "+0.012 (95% interval -0.020 to +0.041)"
