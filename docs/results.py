"""Train every task with several seeds and write the tables of results.

    python docs/results.py --seeds 0 1 2 --tasks attention dialogue molecules --jobs 2      (or: make results)

Each seed draws its own data, split and training, in a folder of its own (data/results/<environment>/<task>/seed<n>), with one
thread; `--jobs` of them run beside each other. What is finished at this commit is kept, what was stopped goes on. Written are
docs/results/<task>.json (the numbers, the commit, and every parameter that they depend on), the tables between the marks
`<!-- results:<task> -->` of docs/results.md, and one row per task between the marks `<!-- results:summary -->` of README.md.
tests/test_results.py fails when a parameter has changed since.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))

from grpo_pipeline.pipeline_registry import register_pipelines, use_arms  # noqa: E402
from grpo_pipeline.pipelines.evaluation.suite import build_suite  # noqa: E402
from grpo_pipeline.runs.run_config_loader import RunConfigLoader  # noqa: E402
from grpo_pipeline.settings import CONFIG_LOADER_ARGS  # noqa: E402
from grpo_pipeline.statistics.metric import UNBOUNDED, Bounds  # noqa: E402
from grpo_pipeline.statistics.over_seeds import over_seeds  # noqa: E402
from grpo_pipeline.statistics.seed_interval import METHOD  # noqa: E402

SEEDED = {  # beside `seed`: what draws the data of a seed
    "attention": ("attention.phantom.seed", "attention.split.seed"),
    "dialogue": ("dialogue.personas.seed", "dialogue.split.seed"),
    "molecules": ("molecules.generator.seed", "molecules.split.seed"),
}
HEADLINES = {  # the first of them is the row of README's table, all stand first in docs/results.md
    "attention": (
        "auroc",
        "average_precision",
        "auroc_patient",
        "brier",
        "lesion_hit_ratio",
        "heatmap_auroc",
        "reward",
    ),
    "dialogue": (
        "f1",
        "reward",
        "bleu",
        "rouge_l",
        "distinct_1",
        "distinct_2",
        "self_bleu",
        "perplexity",
    ),
    "molecules": ("vun", "reward", "validity", "uniqueness", "novelty", "logp", "sa"),
}
BASELINES = {
    "attention": "auroc",
    "dialogue": "reward",
    "molecules": "reward",
}  # what the other rules are shown with
# These say how a run is executed: another value rounds differently at most. `threads` is not among them.
EXECUTION = {
    *(
        "device",
        "micro_batch_size",
        "memory_format",
        "activation_checkpointing",
        "pool",
        "workers",
    ),
    *(
        "log_every_steps",
        "checkpoint_every_steps",
        "gradient_report_every_steps",
        "animation_frames",
    ),
}
COMMAND = "make results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
Document = dict[str, Any]


@dataclass(frozen=True)
class Code:
    """Which code is run: the commit, and a digest of what differs from it in src/ and conf/ (empty: nothing)."""

    commit: str
    changes: str


def read_code() -> Code:
    """Ask git."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout

    changes = git("diff", "HEAD", "--", "src", "conf")
    return Code(
        git("rev-parse", "HEAD").strip(),
        hashlib.sha256(changes.encode()).hexdigest()[:12] if changes else "",
    )


def decisive_parameters(task: str, *, env: str) -> dict[str, Any]:
    """Return path -> value of every parameter that the task's comparison is computed from, at seed 0, without execution keys.

    Which sections these are is read from the pipeline: the ``params:`` that the nodes before ``<task>.comparison`` take.
    """
    seeds = nested({"seed": 0} | dict.fromkeys(SEEDED[task], 0))
    loader = RunConfigLoader(
        str(ROOT / "conf"), env=env, runtime_params=seeds, **CONFIG_LOADER_ARGS
    )
    parameters = loader["parameters"]
    use_arms(parameters)  # not those of whatever ran before in this process
    inputs = register_pipelines()[task].to_outputs(f"{task}.comparison").inputs()
    names = sorted(
        name.removeprefix("params:")
        for name in inputs
        if name.startswith("params:")
        # The audit is handed to the report together with what the comparison reads, and moves no number of it.
        and name not in ("params:resume", "params:executor", f"params:{task}.reward_audit")
    )
    found: dict[str, Any] = {"threads": parameters["threads"]}
    for name in names:
        value: Any = parameters
        for part in name.split("."):
            value = value[part]
        found |= dict(leaves(name, value))
    return found


def with_short_lists(text: str) -> str:
    """Put every list of single values on one line of a JSON text: an interval is read as a pair."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield path and value of each leaf that is no execution key."""
    if path.rpartition(".")[2] in EXECUTION:
        return
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from leaves(f"{path}.{key}", inner)
    else:
        yield path, value


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"a": {"b": 1}}`` of ``{"a.b": 1}``."""
    found: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        inner = found
        for part in parents:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return found


def digest_of(parameters: Mapping[str, Any]) -> str:
    """Return the SHA-256 of parameters; their order does not count."""
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()


def changed_since(stored: Mapping[str, Any], today: Mapping[str, Any]) -> list[str]:
    """Return a line for each parameter that is another one today."""
    paths = sorted(
        path
        for path in stored.keys() | today.keys()
        if stored.get(path, ...) != today.get(path, ...)
    )
    return [
        f"{path}: {stored.get(path, 'absent')} in the table, {today.get(path, 'absent')} today"
        for path in paths
    ]


def train(task: str, seed: int, *, env: str, folder: Path, code: Code, digest: str) -> Document:
    """Return the comparison of one run: that of a finished one of this code and these parameters, or of a new one.

    Raises:
        RuntimeError: if the run fails, or the code was changed while it ran.
    """
    note, log = folder / "run.json", folder / "log.txt"
    about = {"commit": code.commit, "changes": code.changes, "digest": digest, "env": env}
    before = json.loads(note.read_text()) if note.is_file() else {}
    if {key: before.get(key) for key in about} != about:
        shutil.rmtree(folder, ignore_errors=True)
        before = {}
    folder.mkdir(parents=True, exist_ok=True)
    if not before.get("finished"):
        note.write_text(json.dumps(about))
        chosen = {"data": folder, "seed": seed, "resume": "auto"} | dict.fromkeys(
            SEEDED[task], seed
        )
        command = [
            sys.executable,
            "-m",
            "kedro",
            "run",
            "--env",
            env,
            "--pipelines",
            task,
            "--to-outputs",
            f"{task}.comparison",
        ]
        command += ["--params", ",".join(f"{key}={value}" for key, value in chosen.items())]
        environment = os.environ | {
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "GRPO_PROGRESS": "off",
        }
        with log.open("a", encoding="utf-8") as output:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=False
            )
        if done.returncode:
            end = "\n".join(log.read_text(encoding="utf-8").splitlines()[-8:])
            raise RuntimeError(
                f"{task} with seed {seed} must end well, got exit status {done.returncode}; see {log}:\n{end}"
            )
    found: Document = json.loads(
        sorted((folder / "08_reporting").glob("*/comparison.json/*/comparison.json"))[
            -1
        ].read_text()
    )
    if found["commit"] != code.commit or read_code() != code:
        note.unlink()
        raise RuntimeError(
            f"src/, conf/ and the commit must stay the same while {COMMAND} runs, got a change; run it again"
        )
    note.write_text(json.dumps(about | {"finished": True}))
    return found


def combine(task: str, runs: Mapping[int, Document]) -> Document:
    """Return the mean over the seeds, with intervals, of everything that the comparisons of the seeds hold."""
    first, documents = next(iter(runs.values())), list(runs.values())
    named = build_suite(task, {}).for_names(first["arms"][first["control"]]["metrics"]).metrics
    clusters = sum(document["n"]["clusters"] for document in documents)

    def bounds_of(name: str, *, is_difference: bool) -> Bounds:
        low, high = named[name].bounds if name in named else UNBOUNDED
        return (low - high, high - low) if is_difference else (low, high)

    def metrics(*path: str) -> dict[str, Any]:
        per_seed = []
        for found in documents:
            for key in path:
                found = found[key]
            per_seed.append(found)
        return {
            name: entry(
                [each[name] for each in per_seed],
                clusters=clusters,
                bounds=bounds_of(name, is_difference=path[-1] != "metrics"),
            )
            for name in per_seed[0]
        }

    return {
        "task": task,
        "control": first["control"],
        "seeds": list(runs),
        "examples": [document["n"]["examples"] for document in documents],
        "clusters": [document["n"]["clusters"] for document in documents],
        "cluster": first["n"]["cluster"],
        "interval": METHOD,
        "arms": {arm: metrics("arms", arm, "metrics") for arm in first["arms"]},
        "differences": {arm: metrics("differences", arm) for arm in first["differences"]},
        "policy_gain": {arm: metrics("policy_gain", arm) for arm in first["policy_gain"]},
        "baseline_arm": first["baseline_arm"],
        "baselines": {rule: metrics("baselines", rule, "metrics") for rule in first["baselines"]},
    }


def entry(seeds: Sequence[Mapping[str, Any]], *, clusters: int, bounds: Bounds) -> dict[str, Any]:
    """Return one metric over the seeds; each seed has clusters of its own, so that their variances add up."""
    lost = [seed for seed in seeds if seed["value"] is None]
    if lost:
        return {"value": None, "ci95": None, "reason": lost[0]["reason"]}
    values = [seed["value"] for seed in seeds]
    without = [seed for seed in seeds if "se" not in seed]
    if without:
        found = over_seeds(values, cluster_variance=0.0, clusters=clusters)
        return found | {"ci95": None, "reason": without[0]["reason"]}
    variance = sum(seed["se"] ** 2 for seed in seeds) / len(seeds) ** 2
    return over_seeds(values, cluster_variance=variance, clusters=clusters, bounds=bounds)


def summary(documents: Sequence[Document]) -> str:
    """Return README's table: the main metric of each task, in the control and in the arm with GRPO."""
    lines = ["| task, metric | control | `grpo` | difference [95% interval] |", "|---|---|---|---|"]
    for document in documents:
        name, arms = HEADLINES[document["task"]][0], document["arms"]
        title = titles(document["task"], [name])[name]
        values = (f"{arms[arm][name]['value']:.3f}" for arm in (document["control"], "grpo"))
        difference = cell(document["differences"]["grpo"][name], "+")
        lines.append(
            "| " + " | ".join([f"{document['task']}, {title}", *values, difference]) + " |"
        )
    return "\n".join(lines)


def tables(document: Document) -> str:
    """Return the block of docs/results.md: every metric, the main ones first, and what the policy gains over baselines."""
    task, control = document["task"], document["control"]
    names = list(
        dict.fromkeys(
            [*HEADLINES[task], *(name for found in document["arms"].values() for name in found)]
        )
    )
    shown = dict.fromkeys(("reward", BASELINES[task]))
    gains = [
        f"`{arm}`, its own policy minus the baseline `{document['chance_rule']}`: "
        + ", ".join(f"{name} {cell(found[name], '+')}" for name in shown if name in found)
        for arm, found in document["policy_gain"].items()
        if arm != control
    ]
    rules = [
        f"{rule} {cell(found[BASELINES[task]])}" for rule, found in document["baselines"].items()
    ]
    lines = [about(document), "", *table(document, names)]
    if gains:
        lines += ["", "; ".join(gains) + "."]
    if rules:
        lines += [
            "",
            f"{BASELINES[task]} of baselines beside `{document['baseline_arm']}`: "
            + "; ".join(rules)
            + ".",
        ]
    return "\n".join(lines)


def about(document: Document) -> str:
    """Return where the numbers come from, in one sentence."""
    seeds, state = (
        ", ".join(map(str, document["seeds"])),
        " with changes" if document["changes"] else "",
    )
    return (
        f"**{document['task'].capitalize()}.** Held-out examples, mean of the seeds {seeds}, each with data, split and training "
        "of its own [95% interval over seeds and clusters]; last, the differences of the single seeds. "
        f"{numbers(document['examples'])} examples, {numbers(document['clusters'])} clusters by {document['cluster']}. "
        f"`{COMMAND}`, commit {document['commit'][:7]}{state}."
    )


def numbers(values: Sequence[int]) -> str:
    """Return each number, or one where all are the same."""
    return str(values[0]) if len(set(values)) == 1 else ", ".join(map(str, values))


def table(document: Document, names: Sequence[str]) -> list[str]:
    """Return metrics x (arms, differences to the control, the difference of each seed) as lines of Markdown."""
    control, differences = document["control"], document["differences"]
    named = titles(document["task"], names)
    heads = ["metric", *(f"{arm} (control)" if arm == control else arm for arm in document["arms"])]
    heads += [f"{arm} - {control}" for arm in differences] + [
        f"{arm} - {control}, of the seeds" for arm in differences
    ]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for name in names:
        if not any(
            found.get(name, {}).get("value") is not None for found in document["arms"].values()
        ):
            continue
        cells = [named.get(name, name), *(cell(found[name]) for found in document["arms"].values())]
        cells += [cell(found[name], "+") for found in differences.values()]
        cells += [
            " ".join(f"{value:+.3f}" for value in found[name].get("seeds", ())) or "-"
            for found in differences.values()
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def titles(task: str, names: Sequence[str]) -> dict[str, str]:
    """Return name -> how a table calls the metric."""
    return {
        name: metric.title
        for name, metric in build_suite(task, {}).for_names(names).metrics.items()
    }


def cell(entry: Mapping[str, Any], sign: str = "") -> str:
    """Return ``0.682 [0.621, 0.741]``."""
    if entry["value"] is None:
        return "-"
    text = f"{entry['value']:{sign}.3f}"
    return (
        text
        if entry["ci95"] is None
        else f"{text} [{entry['ci95'][0]:{sign}.3f}, {entry['ci95'][1]:{sign}.3f}]"
    )


def between_marks(text: str, name: str, block: str) -> str:
    """Return a document with a marked block replaced; its name is a task's or ``summary``.

    Raises:
        ValueError: if the document has no marks of this name.
    """
    pattern = re.compile(rf"(<!-- results:{name} -->\n).*?(\n<!-- /results:{name} -->)", re.DOTALL)
    if not pattern.search(text):
        raise ValueError(
            f"the document must hold the marks results:{name} and /results:{name} as comments, got none; add them"
        )
    return pattern.sub(lambda found: found[1] + block + found[2], text, count=1)


def write(document: Document, *, out: Path) -> None:
    """Write the numbers of a task as JSON."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{document['task']}.json").write_text(
        with_short_lists(json.dumps(rounded(document), indent=1, allow_nan=False)) + "\n",
        encoding="utf-8",
    )


def rounded(value: Any) -> Any:
    """Round all numbers to eight digits: more of them say nothing of a measured value."""
    if isinstance(value, Mapping):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def stored(folder: Path) -> list[Document]:
    """Read the numbers of all tasks that have some."""
    files = (folder / f"{task}.json" for task in SEEDED)
    return [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]


def written(page: Path, text: str, documents: Sequence[Document]) -> str:
    """Return a page with its marked blocks as the numbers say."""
    blocks = (
        {"summary": summary(documents)}
        if page.name == "README.md"
        else {each["task"]: tables(each) for each in documents}
    )
    for name, block in blocks.items():
        text = between_marks(text, name, block)
    return text


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--tasks", nargs="+", choices=list(SEEDED), default=list(SEEDED))
    parser.add_argument(
        "--jobs", type=int, default=1, help="runs beside each other, one thread each"
    )
    parser.add_argument(
        "--env", default="base", help="environment; another than base writes to --out alone"
    )
    parser.add_argument(
        "--runs", type=Path, default=ROOT / "data" / "results", help="folder of the runs"
    )
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "results", help="folder of the JSON"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train what is missing and write the tables; a task with a failed run keeps its old one."""
    options = parse_arguments(arguments)
    if options.env != "base" and options.out.resolve() == ROOT / "docs" / "results":
        print(
            f"error: --out must name a folder where --env is {options.env}; docs/results holds the defaults",
            file=sys.stderr,
        )
        return 2
    code = read_code()
    parameters = {task: decisive_parameters(task, env=options.env) for task in options.tasks}
    digests = {task: digest_of(found) for task, found in parameters.items()}
    base = options.runs.absolute() / options.env
    failed = False
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = {
            (task, seed): pool.submit(
                train,
                task,
                seed,
                env=options.env,
                folder=base / task / f"seed{seed}",
                code=code,
                digest=digests[task],
            )
            for task in options.tasks
            for seed in options.seeds
        }
        for task in options.tasks:
            try:
                runs = {}
                for seed in options.seeds:
                    runs[seed] = waiting[task, seed].result()
                    print(f"{task}, seed {seed}: finished", flush=True)
            except RuntimeError as error:
                print(f"error: {error}", file=sys.stderr)
                failed = True
                continue
            facts = {
                "commit": code.commit,
                "changes": code.changes,
                "env": options.env,
                "digest": digests[task],
            }
            chance = parameters[task][f"{task}.evaluation.chance_rule"]
            document = (
                combine(task, runs)
                | facts
                | {"chance_rule": chance, "parameters": parameters[task]}
            )
            is_default = options.out.resolve() == ROOT / "docs" / "results"
            write(document, out=options.out)
            for page in PAGES if is_default else ():
                text = page.read_text(encoding="utf-8")
                page.write_text(written(page, text, stored(options.out)), encoding="utf-8")
            if not is_default:
                print(tables(document))
            print(f"{task}: {options.out / task}.json is written", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
