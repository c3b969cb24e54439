"""The results as tables for a terminal of 120 columns; on a narrower one they are folded, and none is cut."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from locomo.types import Benchmark, Category
from memory_program.core.json_files import Json
from memory_program.evaluation.scoring.error_types import ErrorType
from memory_program.evaluation.scoring.question_scores import MEAN_OF_TYPES, RECALL_KEYS

_MAX_SCORE_COLUMNS = 7
"""How many columns of scores with intervals a terminal of 120 columns has room for."""


def print_results(console: Console, results: Json) -> None:
    """Print every score of every system with its interval, its cost, its failures and its signature."""
    systems: Mapping[str, Json] = results["systems"]
    console.print()
    for table in results_tables(results):
        print_table(console, table)
    for system in systems.values():
        console.print(system["signature"], style="dim", highlight=False, markup=False, soft_wrap=True)
    for name, system in systems.items():
        for line in result_warnings(name, system):
            console.print(line, style="bold red", highlight=False, markup=False)
    for line in incomparable_warnings(results):
        console.print(line, style="bold red", highlight=False, markup=False)


def results_tables(results: Json) -> list[Table]:
    """Lay out every table of the results; its cells are plain text, an interval under its score."""
    dataset: Json = results["dataset"]
    systems: Mapping[str, Json] = results["systems"]
    ceiling = {"ceiling (oracle)": results["ceiling"]} if results["ceiling"] else {}
    laid_out = [*_score_tables(dataset, {**systems, **ceiling}), _retrieval_and_cost(systems)]
    if any(usage["cached_tokens"] for system in systems.values() for usage in system["usage"].values()):
        laid_out.append(_prompt_cache_table(systems))
    if any(system["retrieval"][_RANKING_KEYS[0]]["n"] for system in systems.values()):
        laid_out.append(_ranking_table(systems))
    if any(system["judge"] for system in systems.values()):
        laid_out.extend(_judge_tables(dataset, systems))
    if any(system.get("calibration") for system in systems.values()):
        laid_out.append(_judge_error_table(systems))
    laid_out.append(_error_breakdown_table(dataset, systems))
    if results["comparisons"]:
        laid_out.append(_comparison_table(results))
    return laid_out


def print_table(console: Console, table: Table) -> None:
    """Print a table; one that is too wide in parts of whole columns, each beside the columns of text."""
    texts = [column for column in table.columns if column.no_wrap]
    numbers = [column for column in table.columns if not column.no_wrap]
    left = console.width - sum(map(_width, texts)) - 2
    parts: list[list[Column]] = [[]]
    for column in numbers:
        if parts[-1] and sum(map(_width, [*parts[-1], column])) > left:
            parts.append([])
        parts[-1].append(column)
    for number, part in enumerate(parts):
        folded = Table(title=table.title if number == 0 else None, title_justify="left", box=table.box)
        for column in (*texts, *part):
            folded.add_column(column.header, justify=column.justify, no_wrap=True)
        cells = zip(*(column.cells for column in (*texts, *part)), strict=True)
        for row, of_row in zip(table.rows, cells, strict=True):
            folded.add_row(*of_row, end_section=row.end_section)
        console.print(folded, markup=False)


def _width(column: Column) -> int:
    """Give the columns of the terminal that a column takes, with the space around it."""
    lines = [line for cell in (column.header, *column.cells) for line in str(cell).split("\n")]
    return max(map(cell_len, lines)) + 3


def result_warnings(name: str, system: Json) -> list[str]:
    """Say what has no result, and how to get one."""
    lines: list[str] = []
    for stage in ("build", "answer", "judge"):
        counts: Mapping[str, int] = system["failures"][stage]
        failed = {kind: count for kind, count in counts.items() if count and kind != "missing"}
        if failed:
            spelled = ", ".join(f"{count} {kind}" for kind, count in failed.items())
            lines.append(
                f"{name}: {sum(failed.values())} failed in {stage} ({spelled}), counted and not scored; "
                "--retry-errors does them again"
            )
        if counts["missing"]:
            lines.append(f"{name}: {counts['missing']} missing in {stage}: run the same with --mode full")
    if system.get("chosen_on"):
        lines.append(
            f"{name}: its prompts were made and chosen on {len(system['chosen_on'])} of these conversations: "
            "quote --split test"
        )
    return lines


def incomparable_warnings(results: Json) -> list[str]:
    """Say which systems are not compared by a rubric, and how they could be."""
    return [
        f"{pair['a']} and {pair['b']} are not compared by {' and '.join(pair['rubrics'])}: other judges gave "
        "their verdicts; --mode judge has both judged by one"
        for pair in results["not_compared"]
    ]


def score_groups(dataset: Json) -> list[str]:
    """Name the parts that every score is given for: all of it, and each type."""
    return ["all", *dataset["types"]]


def short_heading(group: str) -> str:
    """Shorten the name of a type to what tells it apart, on two lines if it is long."""
    short = group.removeprefix("single-session-").removesuffix("-reasoning")
    return short if len(short) < 13 else short.replace("-", "-\n", 1)


def _score_tables(dataset: Json, systems: Mapping[str, Json]) -> list[Table]:
    title = f"{dataset['name']}: official F1 by category, 95 % interval by conversation"
    if dataset["benchmark"] != Benchmark.LOCOMO:
        title = f"{dataset['name']}: LoCoMo's token F1 by type, 95 % interval by conversation"
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for name, system in systems.items():
        scores: Json = dict(system["locomo_f1"])
        if system["abstention"]["n"] or dataset["benchmark"] == Benchmark.LOCOMO:
            scores["abstention"] = system["abstention"]
        if dataset["benchmark"] == Benchmark.LOCOMO:
            scores["all five"] = system["overall_with_abstention"]
        rows[(name,)] = {group: format_interval(score) for group, score in scores.items()}
    return _tables(title, ["system"], rows, dataset["types"])


def _retrieval_and_cost(systems: Mapping[str, Json]) -> Table:
    recalls = [f"@{key}" if key.isdigit() else f"{key[:-3]} tok" for key in RECALL_KEYS]
    took = ["tokens/question", "calls", "cost", "failures"]
    table = _make_table("Evidence recall, and what it took", ["system"], [*recalls, *took])
    for name, system in systems.items():
        table.add_row(
            name,
            *(_number(system["recall"][key]) for key in RECALL_KEYS),
            _number(system["tokens_per_question"], ",.0f"),
            f"{system['calls']:,}",
            "unknown" if system["cost_usd"] is None else f"${system['cost_usd']:.4f}",
            str(system["failures"]["all"]),
        )
    return table


def _prompt_cache_table(systems: Mapping[str, Json]) -> Table:
    numbers = ["input tokens", "cached", "share", "saved"]
    table = _make_table("What the provider's cache of prompts served", ["system", "stage"], numbers)
    for name, system in systems.items():
        for stage, usage in system["usage"].items():
            if usage["input_tokens"]:
                share = usage["cached_tokens"] / usage["input_tokens"]
                saved = "unknown" if usage["cost_usd"] is None else f"${usage['saved_usd']:.4f}"
                tokens = [f"{usage[key]:,}" for key in ("input_tokens", "cached_tokens")]
                table.add_row(name, stage, *tokens, f"{share:.1%}", saved)
    return table


def _ranking_table(systems: Mapping[str, Json]) -> Table:
    names = [f"{grain} {measure.removeprefix('recall_')}@{k}" for grain, measure, k in _RANKING_METRICS]
    table = _make_table(
        "The ranking: share of the evidence found, all of it found, normalised discounted gain",
        ["system"],
        names,
    )
    for name, system in systems.items():
        table.add_row(name, *(_number(system["retrieval"][key]["value"]) for key in _RANKING_KEYS))
    return table


_RANKING_METRICS = (
    *(("session", measure, k) for measure in ("recall", "recall_all", "ndcg") for k in (5, 10)),
    *(("turn", "ndcg", k) for k in (5, 10)),
)
_RANKING_KEYS = [f"{grain}/{measure}/{k}" for grain, measure, k in _RANKING_METRICS]


def _judge_tables(dataset: Json, systems: Mapping[str, Json]) -> list[Table]:
    judged = {
        (name, rubric): (scores, system["judge"]["kappa"])
        for name, system in systems.items()
        for rubric, scores in (system["judge"] or {}).items()
        if rubric != "kappa"
    }
    groups = [*score_groups(dataset), MEAN_OF_TYPES, "abstention"]
    shown = [group for group in groups if any(group in scores for scores, _ in judged.values())]
    rows: dict[tuple[str, ...], dict[str, str]] = {}
    for labels, (scores, kappa) in judged.items():
        rows[labels] = {group: format_interval(scores[group]) if group in scores else "-" for group in shown}
        rows[labels] |= {"unparsed": str(scores["unparsed"]), "kappa": _number(kappa, ".2f")}
    return _tables("Judged correct", ["system", "rubric"], rows, dataset["types"])


def _judge_error_table(systems: Mapping[str, Json]) -> Table:
    """Say how often each judge errs where the verdict is known; a dash stands for what nobody has tried."""
    found = [system["calibration"] for system in systems.values() if system.get("calibration")]
    title = "How often the judge errs where the verdict is known (python evaluate.py --mode calibrate)"
    table = _make_table(title, ["judge", "rubric"], _ERROR_COLUMNS)
    for judge, quality in {entry["judge"]: entry["quality"] for entry in found}.items():
        for rubric, of_rubric in quality.items():
            for label, rates in _labelled_error_rates(rubric, of_rubric):
                table.add_row(judge, label, *_error_cells(rates))
        if not quality:
            table.add_row(judge, "any", *("-" for _ in _ERROR_COLUMNS))
    return table


def calibration_tables(results: Json) -> list[Table]:
    """Lay out a calibration: its rates, and the share of wrong verdicts by kind of answer."""
    judge, quality = results["judge"]["name"], results["quality"]
    rates = _make_table(f"{judge} on {results['benchmark']}: how often it errs", ["rubric"], _ERROR_COLUMNS)
    columns = ["wrong verdicts", "n", "unparsed"]
    kinds = _make_table("By kind of answer", ["rubric", "answer", "known to be"], columns)
    for rubric, of_rubric in quality.items():
        for label, of_label in _labelled_error_rates(rubric, of_rubric):
            rates.add_row(label, *_error_cells(of_label))
        for row in of_rubric["kinds"]:
            counts = (_number(row["errors"], ".2f"), str(row["n"]), str(row["unparsed"]))
            kinds.add_row(rubric, row["kind"], row["known"], *counts)
        kinds.add_section()
    return [rates, kinds]


_ERROR_COLUMNS = ("false accept", "false reject", "unparsed", "failed")


def _labelled_error_rates(rubric: str, of_rubric: Json) -> list[tuple[str, Json]]:
    """List the rates of a rubric by label; those on questions that its prompts never saw stand apart."""
    untouched: Json | None = of_rubric.get("untouched")
    if untouched is None:
        return [(rubric, of_rubric)]
    return [(rubric, of_rubric), (f"{rubric}, {untouched['questions']} questions untouched", untouched)]


def _error_cells(of_rubric: Json) -> list[str]:
    rates = [format_interval(of_rubric[name]) for name in ("false_accept", "false_reject")]
    return [*rates, str(of_rubric["unparsed"]), str(of_rubric["failed"])]


def _error_breakdown_table(dataset: Json, systems: Mapping[str, Json]) -> Table:
    groups = score_groups(dataset)
    headings = list(map(short_heading, groups))
    if dataset["benchmark"] == Benchmark.LOCOMO:
        groups.append(Category.ADVERSARIAL.label)
        headings = ["all five", *headings[1:], short_heading(groups[-1])]  # unlike "all" of the official F1
    title = "Wrong answers, and what share of them was lost where"
    table = _make_table(title, ["system", "fault"], headings)
    nothing: Json = {"answers": 0, "wrong": 0, "faults": {}}
    for name, system in systems.items():
        counts = [system["diagnosis"].get(group, nothing) for group in groups]
        table.add_row(name, "wrong", *(f"{c['wrong']}/{c['answers']}" for c in counts), end_section=True)
        for fault in (fault for fault in ErrorType if counts[0]["faults"].get(fault)):
            shares = (c["faults"].get(fault, 0) / c["wrong"] if c["wrong"] else None for c in counts)
            table.add_row("", fault.value, *("-" if not share else f"{share:.0%}" for share in shares))
    return table


def _comparison_table(results: Json) -> Table:
    title = "The first minus the second, on the same questions"
    table = _make_table(title, ["first", "second", "metric"], ["difference", "95 % interval", "p", "n"])
    for pair in results["comparisons"]:
        low, high = pair["low"], pair["high"]
        interval = "-" if low is None else f"{low:+.3f}..{high:+.3f}"
        names = (pair["a"], pair["b"], pair["metric"])
        table.add_row(
            *names, f"{pair['difference']:+.3f}", interval, f"{pair['p_value']:.3f}", str(pair["n"])
        )
    return table


def _tables(
    title: str,
    texts: Sequence[str],
    rows: Mapping[tuple[str, ...], Mapping[str, str]],
    types: Sequence[str],
) -> list[Table]:
    """Lay scores out in one table or, where they are too many, in two: what is together, and by type."""
    groups = list(dict.fromkeys(group for cells in rows.values() for group in cells))
    parts = [groups]
    if len(groups) > _MAX_SCORE_COLUMNS:
        parts = [[g for g in groups if g not in types], [g for g in groups if g in types]]
    tables: list[Table] = []
    for number, part in enumerate(parts):
        table = _make_table(
            title if number == 0 else f"{title}: by type", texts, list(map(short_heading, part))
        )
        for labels, cells in rows.items():
            table.add_row(*labels, *(cells.get(group, "-") for group in part))
        tables.append(table)
    return tables


def _make_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    plain = Text(title, "table.title")  # data, judges and models may have brackets in their names
    table = Table(title=plain, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def format_interval(score: Json) -> str:
    """Write a score over its interval, for a cell of two lines; a dash where there is none."""
    if score["value"] is None:
        return "-"
    value = f"{score['value']:.3f}"
    if score["low"] is None:
        return value
    return f"{value}\n{score['low']:.2f}..{score['high']:.2f}"


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
