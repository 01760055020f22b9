"""Terms of art on a page, and their sentences."""

import re
from pathlib import Path

import pytest

from grpo_pipeline.pipelines.reporting.glossary import SHARED, explain, shared_terms
from grpo_pipeline.tasks import TASKS, find_task

TERMS = {"BLEU": "One.", "Self-BLEU": 'Two "words".', "V.U.N.": "Three.", "warm start": "Four.", "start": "Five."}
DOCUMENT = Path(__file__).parents[3] / "docs/glossary.md"
TOLD = {task: shared_terms() | dict(find_task(task).words.terms) for task in TASKS}
# What a title of a metric may be made of without an explanation.
PLAIN = re.compile(
    "accuracy|points in|share of|training cores|distance of the points|spread of|change of|words in",
    re.IGNORECASE,
)


def marked(html: str) -> list[tuple[str, str]]:
    """Return word and sentence of each mark."""
    return re.findall(r'<abbr tabindex="0" aria-description="([^"]*)">([^<]*)</abbr>', explain(html, TERMS))


def test_the_longest_term_counts_in_any_letters_and_a_plural_and_no_part_of_a_word():
    assert marked("<p>bleu of Self-BLEU; V.U.N. after Warm starts, restarted at starts</p>") == [
        ("One.", "bleu"),
        ("Two &#34;words&#34;.", "Self-BLEU"),
        ("Three.", "V.U.N."),
        ("Four.", "Warm starts"),
        ("Five.", "starts"),
    ]


def test_of_two_terms_that_begin_alike_the_longer_one_counts():
    assert 'description="Whole."' in explain("<p>grade group</p>", {"grade": "Part.", "grade group": "Whole."})


def test_a_term_is_marked_once_in_each_section_and_the_page_is_else_as_it_was():
    html = "<p>BLEU, BLEU</p><h2 id='a'>BLEU</h2><p>BLEU &lt;b&gt; <b>BLEU</b></p>"
    assert [word for _, word in marked(html)] == ["BLEU", "BLEU"]
    assert re.sub("</?abbr[^>]*>", "", explain(html, TERMS)) == html


@pytest.mark.parametrize(
    "silent",
    [
        "<head><title>BLEU</title></head>", "<h1>BLEU</h1>", "<nav>BLEU</nav>", "<p><a href='#x'>the <b>BLEU</b></a></p>",
        "<q>BLEU</q>", "<summary>BLEU</summary>", "<pre>BLEU</pre>", "<script>BLEU</script>", "<p title='BLEU'>no</p>",
        "<table><thead><tr><th>BLEU</th></tr></thead><tr><th scope='row'>BLEU</th><td>BLEU</td></tr></table>",
        "<svg><g><svg><text>BLEU</text></svg><text>BLEU</text></g></svg>",
        '<div role="img" aria-label="x"><div>BLEU</div><span>BLEU</span></div>',
    ],
)  # fmt: skip
def test_headings_links_pictures_code_and_what_others_wrote_are_left_alone(silent: str):
    assert explain(silent, TERMS) == silent
    assert marked(f"{silent}<p>BLEU</p>") == [("One.", "BLEU")]  # nor do they end what is read


def test_the_head_of_a_row_of_metrics_is_explained():
    assert marked('<tr><th scope="row" class="metric"><span>BLEU of all ↑</span></th><td>BLEU</td></tr>') == [("One.", "BLEU")]


@pytest.mark.parametrize("task", TASKS)
def test_every_metric_of_a_task_has_a_term_that_is_explained(task: str):
    pattern = re.compile("|".join(rf"(?<![\w-]){re.escape(word)}" for word in TOLD[task]), re.IGNORECASE)
    titles = [metric.title for metric in find_task(task).build_suite({}).metrics.values()]
    assert [title for title in titles if not pattern.search(title) and not PLAIN.match(title)] == []


def test_each_sentence_is_plain_and_written_once():
    text, document = SHARED.read_text(encoding="utf-8"), DOCUMENT.read_text(encoding="utf-8")
    assert len(shared_terms()) == text.count("\n| **")
    words = [word.lower() for words in ({}, *TOLD.values()) for word in {*words} - {*shared_terms()}]
    own = [word.lower() for word in re.findall(r"^\| \*\*(.+?)\*\* \|", document, re.MULTILINE)]
    assert not {*own} & {*words, *(word.lower() for word in shared_terms())}
    assert len(words) == len({*words})
    for told in TOLD.values():
        for word, sentence in told.items():
            assert sentence.endswith("."), word
            assert len(sentence.split()) <= 25, word
            assert not re.search(r"[a-z]{3}\. [A-Z]", sentence), word  # one sentence
