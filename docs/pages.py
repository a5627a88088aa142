"""Fill the figures of the pages from docs/results.json: ``python docs/pages.py``.

A figure is one of `TABLES`, or the path of a value in docs/results.json; a path such as
``demo.low`` may end with a format, as in ``demo.low:.1f``. A table stands between the lines
``<!--=NAME-->`` and ``<!--/-->``, a figure in a cell of a table between the same comments. Figures
in sentences need no comment: docs/sentences.toml has these sentences with ``{NAME}`` in place of
each figure.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "results.json"
SENTENCES = ROOT / "docs" / "sentences.toml"
CURVE = ROOT / "docs" / "pictures" / "label-curve.svg"

COMMENTED = re.compile(r"<!--=(.+?)-->(.*?)<!--/-->", re.DOTALL)
FIELD = re.compile(r"\{([^{}]+)\}")

NUMBER_WORDS = [
    "none",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
]

Values = Mapping[str, Any]


def pages() -> list[Path]:
    """The pages that may have figures; decision records are history and have none."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if not {"adr", "build"} & set(page.parts)]


def read_records() -> dict[str, Any]:
    """The records by name: each has a command, a commit, a date, a machine, and values."""
    records = json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.is_file() else {}
    return dict(records)


def read_values() -> dict[str, Any]:
    """The values of each record, of its file if it names one, with its commit and date."""
    values = {}
    for name, record in read_records().items():
        own = record.get("values", {})
        if "file" in record:
            own = json.loads((ROOT / record["file"]).read_text(encoding="utf-8"))
        if "baselines" in own:
            best = best_strong(own)
            own = {**own, "best": {"name": best, "value": own["baselines"].get(best)}}
        values[name] = {**record, **own}
    return {**values, "derived": derived(values)}


# --- numbers -----------------------------------------------------------------------------------


def text(value: object, form: str = "") -> str:
    """A value as pages show it: numbers with three digits below 1 and two from 1 on."""
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if form == "word":
        return NUMBER_WORDS[int(str(value))]
    if form:
        return format(value, form).replace("%", " %")
    if isinstance(value, int):
        return f"{value:,}"
    number = float(str(value))
    return "<0.001" if 0 < number < 0.0005 else f"{number:.3f}" if number < 1 else f"{number:.2f}"


def interval(values: Values) -> str:
    """A value with its limits."""
    return f"{text(values['value'])} ({text(values['low'])} to {text(values['high'])})"


def table(header: str, rows: list[list[str]]) -> str:
    """A table of Markdown; `header` has its titles between bars."""
    lines = [header, "|---" * (header.count("|") - 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


# --- runs of one study ---------------------------------------------------------------------------

LINEAR, TREES = "linear model of presence", "extra trees on presence"
FIELD_DEFAULT = "random forest on counts, as q2-sample-classifier"
GUESSES = ("the training median", "the majority class")
DEPTH_AND_RICHNESS = "depth and richness alone"
TRIVIAL = (
    *GUESSES,
    DEPTH_AND_RICHNESS,
    "depth alone",
    "richness alone",
    "covariates alone",
    "the study's median",
)

# Names of tasks by record; the first five are the benchmark.
BENCHMARK = {
    "infants-age": "age of infants",
    "infants-delivery": "delivery of infants, with their diet",
    "mackerel": "body site of mackerel",
    "students-braces": "braces of students",
    "adults-sex": "sex of adults",
}
TASKS = {
    **BENCHMARK,
    "students-sex": "sex of students",
    "infants-sex": "sex of infants (little to find)",
    "ibd": "bowel disease (trap: depth)",
    "oral-age": "age in nine studies (trap: study)",
}
DISEASES = {
    "new-ibd": "inflammatory bowel disease",
    "new-parkinson": "Parkinson's disease",
    "new-obesity": "obesity",
    "new-ibs": "irritable bowel syndrome",
    "new-autism": "autism",
    "new-schizophrenia": "schizophrenia",
    "new-gastroenteritis": "gastroenteritis",
}
METRICS = {"mae": "MAE", "auroc": "AUROC", "accuracy": "accuracy"}


def error(run: Values, value: float) -> float:
    """What a metric lacks to perfect."""
    return value if run["metric"] == "mae" else 1 - value


def is_better(run: Values, rival: str) -> bool:
    """Whether a run is shown to be better than a baseline."""
    p = run["p"].get(rival)
    better = error(run, run["value"]) < error(run, run["baselines"].get(rival, run["value"]))
    return better and p is not None and p <= 0.05


def best_strong(run: Values) -> str:
    """The name of the best strong baseline; empty without any."""
    strong = [name for name in run["baselines"] if name not in TRIVIAL]
    return min(strong, key=lambda name: error(run, run["baselines"][name]), default="")


def tasks(values: Values) -> str:
    """All tasks: the model, its members, the best strong baseline and trivial ones."""
    rows = []
    for name, title in TASKS.items():
        run = values[name]
        baselines, best = run["baselines"], best_strong(run)
        q2, p = baselines.get(FIELD_DEFAULT), run["p"].get(FIELD_DEFAULT)
        best_name = "q2" if best == FIELD_DEFAULT else best
        guess = next(baselines[guess] for guess in GUESSES if guess in baselines)
        rows.append(
            [
                f"{title}, {METRICS[run['metric']]}",
                interval(run),
                f"{text(q2)} ({text(p)})" if q2 is not None else "-",
                text(baselines.get(LINEAR)),
                text(baselines.get(TREES)),
                f"{text(baselines[best])} ({best_name})" if best else "-",
                text(baselines.get(DEPTH_AND_RICHNESS)),
                text(guess),
            ]
        )
    header = "| task, metric | aam | q2 (p) | linear model | trees | best strong baseline "
    return table(f"{header}| depth and richness | guessing |", rows)


def benchmark(values: Values) -> str:
    """The five tasks of README."""
    rows = []
    for name, title in BENCHMARK.items():
        run = values[name]
        star = " *" if is_better(run, FIELD_DEFAULT) else ""
        metric = "mean error, months" if run["metric"] == "mae" else METRICS[run["metric"]]
        title += " (other folds than the demo)" if name == "infants-age" else ""
        rivals = [text(run["baselines"][rival]) for rival in (FIELD_DEFAULT, LINEAR, TREES)]
        rows.append([title, metric, f"{text(run['value'])}{star}", *rivals])
    return table("| task | metric | aam | q2-sample-classifier | linear model | trees |", rows)


def with_p(row: Values | None) -> str:
    """A metric and, if there are any, its limits and the p of the difference of aam from it."""
    if row is None:
        return "-"
    if row["p"] is None:
        return text(row["value"])
    limits = f"{text(row['low'])} to {text(row['high'])}"
    return f"{text(row['value'])} ({limits}; {text(row['p'])})"


# The network as `aam train --pretrained-encoder 16s-v4 --freeze-base` adds it.
NETWORK = "pretrained-encoder=16s-v4 freeze-base"


def as_third_member(rows: list[Values]) -> Values:
    """In how many tasks the network, where it joins, lowers or raises the error of two members by
    1 % or more.
    """
    by_task = {row["task"]: row for row in rows if row["setting"] == NETWORK}
    ratios = [error(r, r["judged"]) / error(r, r["two"]) for r in by_task.values()]
    return {
        "tasks": len(ratios),
        "helped": sum(ratio <= 0.99 for ratio in ratios),
        "harmed": sum(ratio >= 1.01 for ratio in ratios),
    }


def better_than_programs(rows: list[Values]) -> str:
    """In how many of its tested tasks `aam` is shown to be better than each program."""
    texts = []
    for name in dict.fromkeys(row["program"] for row in rows):
        tested = [row for row in rows if row["program"] == name and row["p"] is not None]
        better = [
            row
            for row in tested
            if row["p"] <= 0.05 and error(row, row["aam"]) < error(row, row["value"])
        ]
        number, total = (NUMBER_WORDS[len(some)] for some in (better, tested))
        texts.append(f"{name.split()[0]} in {number} of {total}")
    return ", ".join(texts)


def range_of_seconds(rows: list[Values]) -> str:
    """The shortest and the longest time of a program."""
    seconds = [row["seconds"] for row in rows]
    return f"{min(seconds):.0f} to {max(seconds):.0f}"


def rivals(values: Values) -> str:
    """Other programs on the folds of runs: their metric with its limits, and p of the difference of
    aam; the last row has their times.
    """
    rows = values["rivals"]["rows"]
    programs = list(dict.fromkeys(row["program"] for row in rows))
    lines = []
    for name, title in {**TASKS, **DISEASES}.items():
        compared = {row["program"]: row for row in rows if row["task"] == name}
        if not compared:
            continue
        first = next(iter(compared.values()))
        cells = [with_p(compared.get(program)) for program in programs]
        metric = METRICS[first["metric"]] + (", over all studies" if name in DISEASES else "")
        lines.append([f"{title}, {metric}", text(first["aam"]), *cells])
    times = [range_of_seconds([r for r in rows if r["program"] == name]) for name in programs]
    lines.append(["seconds per task, one thread", "-", *times])
    return table(f"| task, metric | aam | {' | '.join(programs)} |", lines)


# Simple models of the same split: three of them do not look at which ASVs a sample has, two do.
DEPTHS = ("depth alone", "richness alone", "depth and richness alone")
SIMPLE = {
    "linear model of presence": "linear",
    "random forest on counts, as q2-sample-classifier": "forest",
}


def simple_models(values: Values) -> list[str]:
    """AUROC over all samples of aam, and of simple models on the same splits; a dash where a study
    is too large for them.
    """
    baselines = values["baselines"]
    simple = [text(baselines[name]) if name in baselines else "-" for name in SIMPLE]
    return [text(values["value"]), *simple, text(max(baselines[name] for name in DEPTHS))]


SIMPLE_HEADER = " | ".join(("aam", *SIMPLE.values(), "depth, richness"))


def diseases(values: Values) -> str:
    """All diseases: AUROC over all samples next to that of simple models, the mean over studies
    that were held out whole, and each study.
    """
    rows = []
    for name, title in DISEASES.items():
        parts = values[name]["parts"]
        studies = ", ".join(f"{study} {text(value)}" for study, value in parts.items())
        mean_text = text(mean(parts))
        rows.append([title, str(len(parts)), *simple_models(values[name]), mean_text, studies])
    header = f"| disease | studies | {SIMPLE_HEADER} | mean of studies | each study |"
    return table(header, rows)


def mean(parts: Mapping[str, float]) -> float:
    """The mean over parts."""
    return sum(parts.values()) / len(parts)


# --- the label curve ------------------------------------------------------------------------------

# Width and height of the picture, and the place of a panel in it.
SIZE, PANEL = (760, 300), {"width": 290, "height": 190, "left": 60, "top": 40}
COLOURS = {"network": "#ee6677", "linear": "#4477aa", "trees": "#228833", "mean": "#888888"}
MEMBERS = {"network": "network", "linear": "linear model", "trees": "trees", "mean": "their mean"}
PANELS = {"oral": "age in nine studies, MAE", "agp": "disease within one study, AUROC"}


def label_curve(values: Values) -> str:
    """The picture of the metric by the number of labels, as SVG."""
    width, height = SIZE
    panels = [
        panel(values["label-curve"][name], title, PANEL["left"] + at * width // 2)
        for at, (name, title) in enumerate(PANELS.items())
    ]
    legend = [
        f'<rect x="{60 + 150 * at}" y="278" width="12" height="4" fill="{COLOURS[name]}"/>'
        f'<text x="{78 + 150 * at}" y="284">{title}</text>'
        for at, (name, title) in enumerate(MEMBERS.items())
    ]
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
    start += 'font-family="Helvetica, Arial, sans-serif" font-size="12" fill="#222222">'
    background = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([start, background, *panels, *legend, "</svg>"]) + "\n"


def panel(task: Values, title: str, left: int) -> str:
    """One task: a line for each member, and the range of its draws."""
    points = [point for curve in task["curves"].values() for point in curve]
    labels = sorted({count for count, *_ in points})
    low, high = min(point[2] for point in points), max(point[3] for point in points)
    top, height = PANEL["top"], PANEL["height"]

    def x_of(count: float) -> float:
        span = math.log(labels[-1] / labels[0])
        return left + PANEL["width"] * math.log(count / labels[0]) / span

    def y_of(value: float) -> float:
        return top + height * (high - value) / (high - low)

    shapes = [f'<text x="{left}" y="{top - 18}" font-weight="bold">{title}</text>']
    for count in labels:
        place = f'x="{x_of(count):.1f}" y="{top + height + 18}" text-anchor="middle"'
        shapes.append(f"<text {place}>{count:,}</text>")
    for value in (low, (low + high) / 2, high):
        y = y_of(value)
        shapes.append(f'<path d="M{left},{y:.1f}h{PANEL["width"]}" stroke="#dddddd"/>')
        shapes.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{value:.2f}</text>')
    for name, curve in task["curves"].items():
        colour = COLOURS[name]
        line = " ".join(f"{x_of(point[0]):.1f},{y_of(point[1]):.1f}" for point in curve)
        shapes.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for count, _, least, most in curve:
            bar = f"M{x_of(count):.1f},{y_of(least):.1f}V{y_of(most):.1f}"
            shapes.append(f'<path d="{bar}" stroke="{colour}" stroke-width="1.2"/>')
    return "\n".join(shapes)


# --- speed ---------------------------------------------------------------------------------------

UNIFRAC = {
    "unifrac": "unweighted UniFrac",
    "weighted": "weighted",
    "weighted-normalized": "weighted-normalized",
    "generalized": "generalized, alpha 0.5",
}


def unifrac_speed(values: Values) -> str:
    """Seconds of whole processes, and the difference of the matrices."""
    processes, rows = values["cpu"]["cases"]["unifrac"]["processes"], []
    for metric, title in UNIFRAC.items():
        times = []
        for program in ("aam", "ssu"):
            seconds = [repeat["seconds"] for repeat in processes[metric][program]]
            times.append(f"{min(seconds):.2f} to {max(seconds):.2f} s")
        rows.append([title, *times, f"{processes[metric]['difference']:.1e}"])
    return table("| | aam | ssu | largest difference |", rows)


# --- kernels ----


def kernels(values: Values) -> str:
    """The kernels of each step, compiled without a GPU."""
    rows = []
    for row in values["kernels"]["rows"]:
        step = f"{row['task']}, {row['network'].replace('-', ', ')}"
        spills = f"{row['with_vgpr_spills']}, {row['with_sgpr_spills']}, {row['with_scratch']}"
        counts = [str(row["kernels"]), f"{row['binaries']}, {row['failed']}", spills]
        most = [str(row["most_vgpr"]), f"{row['most_lds'] / 1024:.1f} KB"]
        rows.append([row["arch"], step, *counts, *most, f"{row['seconds']:.0f}"])
    header = "| for | step, width | kernels | binaries, failed | with VGPR spills, SGPR spills, "
    header += "scratch | most VGPR (of 512) | most LDS (of 64 KB) | seconds |"
    return table(header, rows)


# --- names ---------------------------------------------------------------------------------------


def derived(values: Values) -> dict[str, Any]:
    """Figures that several records give together."""
    runs = [values[name] for name in BENCHMARK if name in values]
    ratios = [error(r, r["value"]) / error(r, r["baselines"][LINEAR]) for r in runs]
    tasks = [values[name] for name in TASKS if name in values]
    tested = [run for run in tasks if FIELD_DEFAULT in run["p"]]
    return {
        "tasks": len(runs),
        "better_than_q2": sum(is_better(run, FIELD_DEFAULT) for run in runs),
        "tested": len(tested),
        "tested_better_than_q2": sum(is_better(run, FIELD_DEFAULT) for run in tested),
        "better_than_best": sum(is_better(run, best_strong(run)) for run in tested),
        "lowest_ratio": min(ratios, default=0.0),
        "highest_ratio": max(ratios, default=0.0),
        "network": as_third_member(values["network-rule"]["rows"]),
        "better_than_programs": better_than_programs(values["rivals"]["rows"]),
        "slots": round(64 * values["h200"]["cases"]["pretrain"]["slots"]),
    }


def printed(values: Values, name: str) -> str:
    """What a command printed, as a block."""
    return "\n".join(["```text", *values[name]["printed"], "```"])


def planted_mixtures(values: Values) -> str:
    """Samples of each study flagged untouched, and the share found of those that were mixed."""
    rows = []
    for study, found in values["sample-fit"]["studies"].items():
        recall = [f"{found['recall'][share]:.2f}" for share in ("0.5", "1", "3", "10")]
        rows.append([study, f"{found['untouched']:.1%}".replace("%", " %"), *recall])
    return table("| study | untouched, flagged | 0.5 % | 1 % | 3 % | 10 % |", rows)


TABLES: dict[str, Callable[[Values], str]] = {
    "tasks": tasks,
    "benchmark": benchmark,
    "rivals": rivals,
    "diseases": diseases,
    "unifrac-speed": unifrac_speed,
    "planted-mixtures": planted_mixtures,
    "kernels": kernels,
}


def figure(name: str, values: Values) -> str:
    """The text of a place.

    Raises
    ------
    KeyError
        No table and no value of docs/results.json has this name.
    """
    if name in TABLES:
        return f"\n{TABLES[name](values)}\n"
    path, _, form = name.partition(":")
    record, *keys = path.split(".")
    if keys == ["printed"]:
        return f"\n{printed(values, record)}\n"
    value: Any = values
    for key in (record, *keys):
        if key not in value:
            raise KeyError(f"docs/results.json has no figure {name}")
        value = value[key]
    return text(value, form)


class Place(NamedTuple):
    """A figure of a page: its name, and where its text starts and ends."""

    name: str
    start: int
    end: int


def read_sentences() -> dict[str, list[str]]:
    """The sentences with figures, by page."""
    return tomllib.loads(SENTENCES.read_text(encoding="utf-8"))


def pattern(sentence: str) -> re.Pattern[str]:
    """A pattern of a sentence with any figures, whose words any white space may separate."""
    parts = FIELD.split(sentence)
    texts = [r"\s+".join(re.escape(word) for word in part.split(" ")) for part in parts[::2]]
    return re.compile(r"(\S(?:[^\n]*?\S)??)".join(texts) + r"(?!\w)")


def places(name: str, page: str) -> list[Place]:
    """The figures of a page, in its order.

    Raises
    ------
    ValueError
        The page does not have one of its sentences, or has it more than once.
    """
    found = [Place(match[1], *match.span(2)) for match in COMMENTED.finditer(page)]
    for sentence in read_sentences().get(name, []):
        matches = [*pattern(sentence).finditer(page)]
        if len(matches) != 1:
            raise ValueError(f"{name} has {len(matches)} times, expected once: {sentence}")
        names = FIELD.findall(sentence)
        found += [Place(n, *matches[0].span(at)) for at, n in enumerate(names, 1)]
    return sorted(found, key=lambda place: place.start)


def filled(name: str, page: str, values: Values) -> str:
    """A page with the figures in its places."""
    for place in reversed(places(name, page)):
        page = page[: place.start] + figure(place.name, values) + page[place.end :]
    return page


def stale(name: str, page: str, values: Values) -> list[str]:
    """The names of the places whose text is not that of docs/results.json."""
    found = places(name, page)
    return [at.name for at in found if page[at.start : at.end] != figure(at.name, values)]


def write_pages() -> None:
    """Fill all pages, draw the label curve, and name the pages that changed."""
    values = read_values()
    CURVE.write_text(label_curve(values), encoding="utf-8")
    for page in pages():
        name, before = page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")
        after = filled(name, before, values)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(name, file=sys.stderr)


if __name__ == "__main__":
    write_pages()
