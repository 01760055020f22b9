from grpo_pipeline.rewards.pool import RewardCache


def test_forgets_what_was_not_asked_for_the_longest():
    cache = RewardCache(2)
    cache.put("a", 1.0)
    cache.put("b", 2.0)
    assert cache.get("a") == 1.0  # b is the oldest now
    cache.put("c", 3.0)
    assert [cache.get(key) for key in "abc"] == [1.0, None, 3.0]
    cache.put("a", 4.0)  # written again: c is the oldest
    cache.put("d", 5.0)
    assert [cache.get(key) for key in "acd"] == [4.0, None, 5.0]
    assert len(cache) == 2


def test_size_nought_keeps_nothing():
    cache = RewardCache(0)
    cache.put("a", 1.0)
    assert cache.get("a") is None
