"""The results as tables for a terminal of 120 columns."""

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from locomo.conversation import ANSWERABLE, Category
from memory_program.evaluation.diagnosis import Fault
from memory_program.evaluation.scoring import RECALL_KEYS, Json

CATEGORIES = ("all", *(category.label for category in ANSWERABLE))


def print_results(console: Console, results: Json) -> None:
    """Print every score of every system with its interval, its cost, its failures and its signature."""
    systems: Mapping[str, Json] = results["systems"]
    console.print()
    console.print(_scores(results["dataset"], systems))
    console.print(_retrieval_and_cost(systems))
    if any(system["judge"] for system in systems.values()):
        console.print(_judgements(systems))
    console.print(_diagnoses(systems))
    if results["comparisons"]:
        console.print(_comparisons(results))
    for system in systems.values():
        console.print(system["signature"], style="dim", highlight=False, markup=False, soft_wrap=True)
    for name, system in systems.items():
        for line in warnings(name, system):
            console.print(line, style="bold red", highlight=False, markup=False)


def warnings(name: str, system: Json) -> list[str]:
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
    return lines


def _scores(dataset: Json, systems: Mapping[str, Json]) -> Table:
    title = f"{dataset['name']}: official F1 by category, 95 % interval by conversation"
    table = _table(title, ["system"], [*CATEGORIES, "abstention", "all five"])
    for name, system in systems.items():
        scores = [system["locomo_f1"][category] for category in CATEGORIES]
        scores += [system["abstention"], system["overall_with_abstention"]]
        table.add_row(name, *(spelled_interval(score) for score in scores))
    return table


def _retrieval_and_cost(systems: Mapping[str, Json]) -> Table:
    recalls = [f"@{key}" if key.isdigit() else f"{key[:-3]} tok" for key in RECALL_KEYS]
    took = ["tokens/question", "calls", "cost", "failures"]
    table = _table("Evidence recall, and what it took", ["system"], [*recalls, *took])
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


def _judgements(systems: Mapping[str, Json]) -> Table:
    table = _table("Judged correct", ["system", "rubric"], [*CATEGORIES, "unparsed", "kappa"])
    for name, system in systems.items():
        judge: Json = system["judge"] or {}
        for rubric in (rubric for rubric in judge if rubric != "kappa"):
            scores = [spelled_interval(judge[rubric][category]) for category in CATEGORIES]
            table.add_row(
                name, rubric, *scores, str(judge[rubric]["unparsed"]), _number(judge["kappa"], ".2f")
            )
    return table


def _diagnoses(systems: Mapping[str, Json]) -> Table:
    groups = (*CATEGORIES, Category.ADVERSARIAL.label)
    table = _table("Wrong answers, and what share of them was lost where", ["system", "fault"], groups)
    nothing: Json = {"answers": 0, "wrong": 0, "faults": {}}
    for name, system in systems.items():
        counts = [system["diagnosis"].get(group, nothing) for group in groups]
        table.add_row(name, "wrong", *(f"{c['wrong']}/{c['answers']}" for c in counts), end_section=True)
        for fault in (fault for fault in Fault if counts[0]["faults"].get(fault)):
            shares = (c["faults"].get(fault, 0) / c["wrong"] if c["wrong"] else None for c in counts)
            table.add_row("", fault.value, *("-" if not share else f"{share:.0%}" for share in shares))
    return table


def _comparisons(results: Json) -> Table:
    title = "The first minus the second, on the same questions"
    table = _table(title, ["first", "second", "metric"], ["difference", "95 % interval", "p", "n"])
    for pair in results["comparisons"]:
        low, high = pair["low"], pair["high"]
        interval = "-" if low is None else f"{low:+.3f}..{high:+.3f}"
        names = (pair["a"], pair["b"], pair["metric"])
        table.add_row(
            *names, f"{pair['difference']:+.3f}", interval, f"{pair['p_value']:.3f}", str(pair["n"])
        )
    return table


def _table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def spelled_interval(score: Json) -> str:
    """Write a score over its interval, for a cell of two lines; a dash where there is none."""
    if score["value"] is None:
        return "-"
    value = f"{score['value']:.3f}"
    if score["low"] is None:
        return value
    return f"{value}\n{score['low']:.2f}..{score['high']:.2f}"


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
