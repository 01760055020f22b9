from grpo_pipeline.tasks.dialogue.language_model.base import reader_texts, story_text

STORIES = [story_text("Rex", "a dog."), story_text("Tom", "a cat.")]


def test_a_seq2seq_reader_reads_each_story_with_the_question() -> None:
    expected = ["title: Rex story: a dog. persona: p context: c", "title: Tom story: a cat. persona: p context: c"]
    assert reader_texts("persona: p context: c", STORIES, kind="seq2seq") == expected
    assert reader_texts("q", [], kind="seq2seq") == ["q"]


def test_a_causal_reader_reads_all_stories_then_the_question_once() -> None:
    expected = ["title: Rex story: a dog. title: Tom story: a cat. q reply:"]
    assert reader_texts("q", STORIES, kind="causal") == expected
    assert reader_texts("q", [], kind="causal") == ["q reply:"]
