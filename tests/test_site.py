"""The site of the documents: its doors hold every page, its figures keep their limits, its generated pages are complete.

`make docs` builds it with the extra `docs`; what is checked here needs none of it.
"""

import importlib.util
import re
from pathlib import Path

import my_rewards
import pytest
import yaml
from benchmark_scripts import load_script

import grpo_pipeline
from grpo_pipeline.pipeline_registry import PIPELINES, SHORT
from grpo_pipeline.tasks import TASKS

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
DOORS = ["Tutorials", "How-to", "Reference", "Explanation"]
pages = load_script("docs/pages.py", name="pages_script")
reference = load_script("docs/reference.py", name="reference_script")


def test_every_page_is_behind_one_door() -> None:
    sections = pages.navigation()
    assert list(sections) == ["Start", *DOORS, pages.RESEARCH]
    listed = [page for section in sections.values() for page in section]
    assert len(listed) == len(set(listed))
    committed = {file.relative_to(DOCS).as_posix() for file in DOCS.rglob("*.md")}
    decisions = {page for page in committed if page.startswith("decisions/0")}
    assert sorted(set(listed) ^ (committed - decisions)) == sorted(reference.pages())


def test_the_doors_are_short_and_show_pictures() -> None:
    found = pages.figures()
    assert sum(found.words.values()) <= pages.MOST_WORDS
    assert len(found.pictures) >= pages.LEAST_PICTURES
    tutorials = {page: words for page, words in found.words.items() if page.startswith("tutorials/")}
    assert len(tutorials) == 6
    assert max(tutorials.values()) <= 500


def test_pictures_are_small(committed_files: tuple[Path, ...]) -> None:
    pictures = [file for file in committed_files if file.parent == DOCS / "images"]
    assert not [file.name for file in pictures if file.stat().st_size > 150_000]


def test_words_of_a_page_are_those_of_its_text() -> None:
    text = "# One title\n\nTwo [linked words](page.md#a-b), ![a picture](x.png).\n\n```sh\nmake run\n```\n"
    assert pages.count_words(text) == 7


def test_the_page_of_the_api_has_every_public_name() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    public = {f"grpo_pipeline.core.{module}.{name}" for name, module in grpo_pipeline.PUBLIC.items()}
    assert sorted(name for name in named if ".core." in name) == sorted(public)


def test_the_reward_of_the_tutorial_pays_for_being_near() -> None:
    shown = re.findall(
        r"^```python\n(.*?)^```", (DOCS / "tutorials/own_reward.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    tested = Path(my_rewards.__file__).read_text(encoding="utf-8").partition("\n\n")[2]
    assert shown == [f"# src/my_rewards.py\n{tested}"]
    assert my_rewards.is_near(["7", "it is 9", "none", "99"], [["7"]] * 4, reach=5) == [1.0, 0.6, 0.0, 0.0]


def test_the_program_of_the_tutorial_is_the_one_whose_output_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """It learns: the last line has a reward near 1; digits of a sum may differ between machines."""
    text = (DOCS / "tutorials/sixty_lines.md").read_text(encoding="utf-8")
    program, shown = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)[0] for kind in ("python", "text"))
    assert len(program.splitlines()) <= 60
    exec(compile(program, "sixty_lines.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed] == [line.split()[:2] for line in shown.splitlines()]
    assert printed[0] == shown.splitlines()[0]
    assert float(printed[-1].split()[3]) > 0.8


def test_symptoms_name_metrics_and_parameters_that_exist() -> None:
    text = (DOCS / "when_it_does_not_learn.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| ", text, re.MULTILINE) == [str(number + 1) for number in range(10)]
    metrics, parameters = ((DOCS / name).read_text(encoding="utf-8") for name in ("metrics.md", "parameters.md"))
    named = re.findall(r"`((?:reward|policy|kl|grad_norm|dead)/[\w<>]+)`", text)
    assert len(named) > 8
    assert not [name for name in named if f"`{name}`" not in metrics]
    keys = re.findall(r"`((?:[a-z_]+\.)*[a-z_]+)(?:: \w+)?`", text)
    leaves = {key.rpartition(".")[2] for key in keys} - {"supervised", "algorithm", "csv"}  # an arm, its section, a file
    assert len(leaves) > 8
    assert not [leaf for leaf in sorted(leaves) if not re.search(rf"^\| `(?:\w+\.)*{leaf}`", parameters, re.MULTILINE)]


def test_generated_pages_name_every_pipeline_command_and_data_set() -> None:
    written = reference.pages()
    names = {task if not name else f"{task}_{name}" for task in TASKS for name in ("", *PIPELINES)}
    assert not [name for name in (*names, *SHORT) if f"`{name}`" not in written["reference/pipelines.md"]]
    targets = re.findall(r"^([a-z-]+):[^#\n]*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert not [name for name in targets if f"`make {name}`" not in written["reference/commands.md"]]
    catalogue = yaml.safe_load((ROOT / "conf/base/catalog.yml").read_text(encoding="utf-8"))
    shown = [re.sub(r"\{(\w+)\}", r"<\1>", name) for name in catalogue if not name.startswith("_")]
    assert not [name for name in shown if f"`{name}`" not in written["reference/catalogue.md"]]


def test_generated_pages_hold_the_refusals_of_the_source() -> None:
    text = reference.pages()["reference/errors.md"]
    assert "- --option must be KEY=NUMBER, got …; write 1 for yes and 0 for no\n" in text
    assert text.count("\n- ") > 300


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="the extra docs is not installed; make docs installs it")
def test_links_anchors_and_tooltips_of_the_site_are_made_as_they_should(tmp_path: Path) -> None:
    hooks = load_script("docs/mkdocs_hooks.py", name="mkdocs_hooks")
    assert hooks.anchor("Values in, `a` / b", "-") == "values-in-a--b"
    page = type("Page", (), {"file": type("File", (), {"src_uri": "tutorials/first_run.md"})})
    text = "[code](../../src/x.py), [a page](../gpu.md#bf16) and [gpu.md](../gpu.md#bf16)"
    shown = "code, [a page](../gpu.md#bf16) and [Precision, memory and large batches](../gpu.md#bf16)"
    assert hooks.on_page_markdown(text, page=page) == shown
    html = hooks.on_page_content("<p>The reward, <code>arm</code>, a reward of two cores.</p>", page=page)
    assert html.count("<abbr") == html.count("title=") == 1
    (tmp_path / "index.html").write_text(
        '<a href="https://example.org">a link</a><script src="https://example.org/x.js"></script>'
    )
    with pytest.raises(hooks.PluginError, match="must load nothing from another host, got https://example.org/x.js"):
        hooks.on_post_build(config=type("Config", (), {"site_dir": str(tmp_path)}))
