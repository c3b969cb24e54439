"""The results as tables: a short summary for the terminal, and every number for the report."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from textwrap import shorten

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from locomo.types import Benchmark, Category, WorldQuestionType
from memory_program.core.json_files import Json
from memory_program.evaluation.console import print_plain, print_table
from memory_program.evaluation.scoring.error_types import ErrorType
from memory_program.evaluation.scoring.question_scores import MEAN_OF_TYPES, RECALL_KEYS
from memory_program.models.model_names import is_local

_MAX_SCORE_COLUMNS = 7
"""A terminal of 120 columns has room for this many columns of scores with intervals."""

_ERROR_TITLE = "Error breakdown by pipeline stage"
_NO_STAGE = "not recorded"
_ERROR_RATE_COLUMNS = ("false accept", "false reject", "unparsed", "failed")

_RANKING_METRICS = (
    *(("session", measure, k) for measure in ("recall", "recall_all", "ndcg") for k in (5, 10)),
    *(("turn", "ndcg", k) for k in (5, 10)),
)
_RANKING_KEYS = [f"{grain}/{measure}/{k}" for grain, measure, k in _RANKING_METRICS]


def print_results(console: Console, results: Json) -> None:
    """Print the summary of the results and the warnings; the report has every table."""
    for table in summary_tables(results):
        console.print()
        print_table(console, table)
    console.print()
    lines = [line for name, system in results["systems"].items() for line in result_warnings(name, system)]
    for line in (*lines, *incomparable_warnings(results)):
        print_plain(console, line, style="bold red")


def summary_tables(results: Json) -> list[Table]:
    """Lay out the summary, with a line per system: F1, verdicts of a judge, recall and cost, errors."""
    dataset, systems = results["dataset"], results["systems"]
    scores = _f1_scores(results)
    groups = list(dict.fromkeys(group for of_system in scores.values() for group in of_system))
    others = [group for group in groups if group != "all"]
    headings = ["all", "interval", *map(short_heading, others)]
    headline = _make_table(_f1_title(dataset), ["system"], headings)
    for name, of_system in scores.items():
        values = [_number(of_system[g]["value"] if g in of_system else None) for g in others]
        headline.add_row(name, *_value_and_interval(of_system["all"]), *values)
    tables = [headline, _recall_and_cost_table(systems)]
    if any(system["judge"] for system in systems.values()):
        judged = _make_table("Judged correct", ["system", "rubric"], ["all", "interval", "unparsed"])
        for name, rubric, verdicts, _ in _verdicts(systems):
            judged.add_row(name, rubric, *_value_and_interval(verdicts["all"]), str(verdicts["unparsed"]))
        tables.insert(1, judged)
    found = [e for e in ErrorType if any(s["diagnosis"]["all"]["faults"].get(e) for s in systems.values())]
    short = [
        e.split(" but ")[-1].removesuffix(" although shown").replace("have abstained", "abstain")
        for e in found
    ]
    if any(_without_stage(system["diagnosis"]["all"]) for system in systems.values()):
        short.append(_NO_STAGE)
    errors = _make_table(f"{_ERROR_TITLE} (share of wrong answers)", ["system"], ["wrong", *short])
    for name, system in systems.items():
        counts = system["diagnosis"]["all"]
        shares = [_share(counts["faults"].get(error, 0), counts["wrong"]) for error in found]
        if _NO_STAGE in short:
            shares.append(_share(_without_stage(counts), counts["wrong"]))
        errors.add_row(name, f"{counts['wrong']}/{counts['answers']}", *shares)
    return [*tables, errors]


def results_tables(results: Json) -> list[Table]:
    """Lay out every table of the results; its cells are plain text, an interval under its score."""
    dataset, systems = results["dataset"], results["systems"]
    scores = {
        (name,): {group: format_interval(score) for group, score in of_system.items()}
        for name, of_system in _f1_scores(results).items()
    }
    tables = _interval_tables(_f1_title(dataset), ["system"], scores, dataset["types"])
    tables += [_recall_and_cost_table(systems), _latency_table(systems)]
    banks = _with_oracle(results)
    known = (*_stored_facts_tables(banks), _prompt_cache_table(systems))
    tables += [table for table in known if table.rows]
    if any(system["retrieval"][_RANKING_KEYS[0]]["n"] for system in systems.values()):
        names = [
            f"{grain} {measure.replace('recall_all', 'full recall')}@{k}"
            for grain, measure, k in _RANKING_METRICS
        ]
        ranking = _make_table("Retrieval: recall@k, full recall@k, NDCG@k", ["system"], names)
        for name, system in systems.items():
            ranking.add_row(name, *(_number(system["retrieval"][key]["value"]) for key in _RANKING_KEYS))
        tables.append(ranking)
    if any(system["judge"] for system in systems.values()):
        judged = _verdicts(systems)
        groups = [*score_groups(dataset), MEAN_OF_TYPES, "abstention"]
        shown = [group for group in groups if any(group in verdicts for _, _, verdicts, _ in judged)]
        rows: dict[tuple[str, ...], dict[str, str]] = {}
        for name, rubric, verdicts, kappa in judged:
            cells = {g: format_interval(verdicts[g]) if g in verdicts else "-" for g in shown}
            counts = {"unparsed": str(verdicts["unparsed"]), "kappa": _number(kappa, ".2f")}
            rows[name, rubric] = {**cells, **counts}
        tables += _interval_tables("Judged correct", ["system", "rubric"], rows, dataset["types"])
    calibrated = [system["calibration"] for system in systems.values() if system.get("calibration")]
    if calibrated:
        title = "Error rates of the judge on known answers (python evaluate.py --mode calibrate)"
        rates = _make_table(title, ["judge", "rubric"], _ERROR_RATE_COLUMNS)
        by_judge: dict[str, Json] = {}
        for entry in calibrated:
            by_judge.setdefault(entry["judge"], {}).update(entry["quality"])
        for judge, quality in by_judge.items():
            for rubric, of_rubric in quality.items():
                for label, cells in _error_rate_rows(rubric, of_rubric):
                    rates.add_row(judge, label, *cells)
            if not quality:  # not measured
                rates.add_row(judge, "any", *("-" for _ in _ERROR_RATE_COLUMNS))
        tables.append(rates)
    tables.append(_error_breakdown_table(dataset, systems))
    if results["comparisons"]:
        numbers = ["difference", "95 % interval", "p", "n"]
        title = "Paired differences (first minus second) on the same questions"
        comparison = _make_table(title, ["first", "second", "metric"], numbers)
        for pair in results["comparisons"]:
            interval = "-" if pair["low"] is None else f"{pair['low']:+.3f}..{pair['high']:+.3f}"
            cells = (f"{pair['difference']:+.3f}", interval, f"{pair['p_value']:.3f}", str(pair["n"]))
            comparison.add_row(pair["a"], pair["b"], pair["metric"], *cells)
        tables.append(comparison)
    return tables


def result_warnings(name: str, system: Json) -> list[str]:
    """List the results that a system lacks and how to get them, and the flaws of its replies."""
    lines: list[str] = []  # older results may not know what some of them tell
    is_foreign = "answers_file" in ((system.get("run") or {}).get("system") or {}).get("settings", {})
    for stage in ("build", "answer", "judge"):
        counts: Mapping[str, int] = system["failures"][stage]
        failed = {kind: count for kind, count in counts.items() if count and kind != "missing"}
        if failed:
            spelled = ", ".join(f"{count} {kind}" for kind, count in failed.items())
            first = system.get("first_failures", {}).get(stage, "")
            repeat = "" if is_foreign else "; --retry-errors repeats them"
            example = f"; the first: {shorten(first, 240)}" if first else ""
            lines.append(
                f"{sum(failed.values())} failed in {stage} ({spelled}), counted but not scored"
                f"{repeat}{example}"
            )
        if counts["missing"]:
            advice = "add their lines to the file" if is_foreign else "run the same with --mode full"
            lines.append(f"{counts['missing']} missing in {stage}: {advice}")
    if system.get("lost_banks"):
        names = shorten(", ".join(system["lost_banks"]), 120)
        lines.append(
            f"banks that are not in the database as recorded: {len(system['lost_banks'])} ({names}): "
            "sessions are missing, or another run changed them. Their wrong answers have no error type, and "
            "the tables about banks leave them out; restore the database, or run the same with --mode full, "
            "which builds them again"
        )
    if system.get("unscored"):
        advice = "this command has none" if is_foreign else "name one with --judge-model"
        lines.append(
            f"{system['unscored']} answers need a judge and have no score; they do not count as wrong: "
            f"{advice}"
        )
    memory: Mapping[str, int] = system.get("memory", {})
    if 2 * memory.get("silent_sessions", 0) > memory.get("sessions", 0):
        lines.append(
            f"in {memory['silent_sessions']} of {memory['sessions']} sessions the writer called no tool: it "
            "remembers nothing of them"
        )
    if memory.get("tool_errors"):
        names = {"invented": "not from the session", "copied": "copied from the prompt"}
        found = [f"{memory[key]} {meaning}" for key, meaning in names.items() if memory.get(key)]
        reasons = f" ({', '.join(found)})" if found else ""
        lines.append(f"{memory['tool_errors']} of {memory['tool_calls']} tool calls were refused{reasons}")
    flaws = {
        "replies in another form were read": memory.get("repaired", 0) + system.get("repaired_answers", 0),
        "repeated calls were left out": memory.get("duplicates"),
    }
    lines += [f"{count} {meaning}" for meaning, count in flaws.items() if count]
    if system.get("chosen_on"):
        lines.append(
            f"it was optimised or trained on {len(system['chosen_on'])} of these conversations: quote "
            "--split test"
        )
    return [f"{name}: {line}" for line in lines]


def incomparable_warnings(results: Json) -> list[str]:
    """List why scores or verdicts of systems cannot be compared, and how they could be."""
    lines: list[str] = []
    asked: Mapping[str, int] = results.get("asked", {})  # one run asks its systems the same questions
    if any(count != results["asked_of_all"] for count in asked.values()):
        counts = ", ".join(f"{name} {count:,}" for name, count in asked.items())
        lines.append(
            f"The systems were asked different questions ({counts}; {results['asked_of_all']:,} are common "
            "to all), so their scores cannot be compared: use the paired differences, or report runs with "
            "the same questions"
        )
        paired = {(pair["a"], pair["b"]) for pair in results["comparisons"]}
        unpaired = [f"{a} and {b}" for a, b in combinations(asked, 2) if (a, b) not in paired]
        if unpaired:
            lines.append(f"No paired difference of {'; '.join(unpaired)}: they share no scored question")
    return lines + [
        f"{pair['a']} and {pair['b']} are not compared by {' and '.join(pair['rubrics'])}: their verdicts "
        "are by different judges; --mode judge judges both with the same one"
        for pair in results["not_compared"]
    ]


def score_groups(dataset: Json) -> list[str]:
    """List the groups of questions that every score is given for: all, and each type."""
    return ["all", *dataset["types"]]


def short_heading(group: str) -> str:
    """Shorten the name of a question type; on two lines if it is still long."""
    short = group.removeprefix("single-session-").removesuffix("-reasoning")
    return short if len(short) < 13 else short.replace("-", "-\n", 1)


def _with_oracle(results: Json) -> Mapping[str, Json]:
    oracle = {"oracle (upper bound)": results["ceiling"]} if results["ceiling"] else {}
    return {**results["systems"], **oracle}


_SCORE_LABELS: Mapping[str, str] = {
    Benchmark.LOCOMO: "official F1",
    Benchmark.PERSONAMEM: "share of right choices",
    Benchmark.BEAM: "nugget score",
    Benchmark.LOCOMO_PLUS: "share of linked replies",
    Benchmark.MEMORYAGENTBENCH: "official metric",
}
"""The names of the benchmarks' scores on axes and in titles."""

_TOKEN_F1_LABEL = "LoCoMo's token F1"
"""That of a benchmark which has none of its own."""

_GROUPED_BY = {
    Benchmark.LOCOMO: "category",
    Benchmark.BEAM: "ability",
    Benchmark.LOCOMO_PLUS: "relation",
    Benchmark.MEMORYAGENTBENCH: "task",
}


def score_label(benchmark: str) -> str:
    """Name the score of a benchmark."""
    return _SCORE_LABELS.get(benchmark, _TOKEN_F1_LABEL)


def score_by_group_label(dataset: Json) -> str:
    """Name the score of a dataset's benchmark and the groups of questions that it is given for."""
    return f"{score_label(dataset['benchmark'])} by {_GROUPED_BY.get(dataset['benchmark'], 'type')}"


def _f1_title(dataset: Json) -> str:
    cluster = "history" if dataset["benchmark"] == Benchmark.PERSONAMEM else "conversation"
    return f"{dataset['name']}: {score_by_group_label(dataset)}, 95 % interval by {cluster}"


def _f1_scores(results: Json) -> dict[str, Json]:
    """Return the scores of each system by group: all, types, and the benchmark's other scores."""
    scores: dict[str, Json] = {}
    is_locomo = results["dataset"]["benchmark"] == Benchmark.LOCOMO
    for name, system in _with_oracle(results).items():
        scores[name] = dict(system["locomo_f1"])
        if system["abstention"]["n"] or is_locomo:
            scores[name]["abstention"] = system["abstention"]
        if is_locomo:
            scores[name]["all five"] = system["overall_with_abstention"]
        if system.get("earlier_state", {}).get("n"):  # older results have no such questions
            scores[name][WorldQuestionType.EARLIER_STATE.label] = system["earlier_state"]
    return scores


def _recall_and_cost_table(systems: Mapping[str, Json]) -> Table:
    recalls = [f"@{key}" if key.isdigit() else f"{key[:-3]} tok" for key in RECALL_KEYS]
    usage = ["tokens/question", "calls", "cost", "failures"]
    table = _make_table("Evidence recall and cost", ["system"], [*recalls, *usage])
    for name, system in systems.items():
        cost = "unknown" if system["cost_usd"] is None else f"${system['cost_usd']:.4f}"
        table.add_row(
            name,
            *(_number(system["recall"][key]) for key in RECALL_KEYS),
            _number(system["tokens_per_question"], ",.0f"),
            f"{system['calls']:,}",
            cost if system["cost_usd"] != 0 else "-",
            str(system["failures"]["all"]),
        )
    return table


def _latency_table(systems: Mapping[str, Json]) -> Table:
    """Lay out score, tokens, latency and dollars side by side; results of older versions have no latency."""
    times = ["question p50", "p95", "session p50", "p95"]
    headings = ["correct", "tokens/question", *times, "$/correct answer"]
    table = _make_table("Score, latency in seconds, and cost", ["system"], headings)
    for name, system in systems.items():
        counts, cost = system["diagnosis"]["all"], system.get("cost_per_correct_usd")
        latency = system.get("latency", {}).get("seconds", {})
        seconds = [
            latency.get(item, {}).get(share) for item in ("question", "session") for share in ("p50", "p95")
        ]
        correct = counts["answers"] - counts["wrong"]
        free = "-" if system["cost_usd"] == 0 else "unknown"
        if system["cost_usd"] and counts["answers"] and not correct:
            free = "none correct"
        table.add_row(
            name,
            f"{correct / counts['answers']:.0%}" if counts["answers"] else "-",
            _number(system["tokens_per_question"], ",.0f"),
            *(_number(value, ".3g") for value in seconds),
            f"${cost:.4f}" if cost else free,
        )
    return table


def _stored_facts_tables(systems: Mapping[str, Json]) -> list[Table]:
    """Lay out the quality of what each system stored, and the updates and deletions that were due.

    No rows without banks, and none of changes where these are not known. Older results have none.
    """
    scores = ("precision", "recall", "f1")
    headings = [
        "memories",
        "precision",
        "recall",
        "F1",
        "duplicates",
        "stale",
        "found",
        "invented",
        "unasked",
    ]
    table = _make_table("Stored facts: against the truth or notes, and by agent", ["system", "of"], headings)
    sessions = _make_table("Stored facts by session", ["system", "of"], headings[:4])
    outcomes = ["due and done", "missed", "wrong"]
    changes = _make_table("Changes of stored facts", ["system", "change"], outcomes)
    for name, system in systems.items():
        stored = system.get("stored_facts")
        if stored is None:
            continue
        is_truth = stored["reference"] == "truth"
        agents: dict[str, Json] = {stored["reference"]: stored["all"]}
        for agent, found in (agents | stored["by_agent"]).items():
            known = ("stale", "stale_found", "invented")
            table.add_row(
                name,
                agent,
                f"{found['memories']:,}",
                *(format_interval(found[score]) for score in scores),
                f"{found['duplicate']:,}",
                *(f"{found[key]:,}" if is_truth else "-" for key in known),
                f"{found['unasked']:,}" if "unasked" in found else "-",
            )
        for session_id, found in stored.get("by_session", {}).items():
            cells = (format_interval(found[score]) for score in scores)
            sessions.add_row(name, session_id.replace("_", " "), f"{found['memories']:,}", *cells)
        for change, counts in (stored.get("changes") or {}).items():
            changes.add_row(name, change, *(f"{counts[key]:,}" for key in ("done", "missed", "wrong")))
    return [table, sessions, changes]


def _prompt_cache_table(systems: Mapping[str, Json]) -> Table:
    """Lay out the input tokens that a provider served from its cache, by stage; no rows if there are none."""
    numbers = ["input tokens", "cached", "share", "saved"]
    table = _make_table("Prompt cache", ["system", "stage"], numbers)
    for name, system in systems.items():
        run: Json = system.get("run") or {"system": {}}
        identity, judge = run["system"], run.get("judge") or {}
        models = {
            "build": identity.get("writer"),
            "answer": identity.get("reader"),
            "judge": judge.get("model"),
        }
        usages = {stage: u for stage, u in system["usage"].items() if not is_local(models[stage] or "")}
        if any(usage["cached_tokens"] for usage in usages.values()):
            for stage, usage in usages.items():
                if usage["input_tokens"]:
                    saved = "unknown" if usage["cost_usd"] is None else f"${usage['saved_usd']:.4f}"
                    tokens = [f"{usage[key]:,}" for key in ("input_tokens", "cached_tokens")]
                    share = f"{usage['cached_tokens'] / usage['input_tokens']:.1%}"
                    table.add_row(name, stage, *tokens, share, saved)
    return table


def _verdicts(systems: Mapping[str, Json]) -> list[tuple[str, str, Json, float | None]]:
    """List the verdicts of each system and rubric, and the agreement of the system's two rubrics."""
    return [
        (name, rubric, verdicts, system["judge"]["kappa"])
        for name, system in systems.items()
        for rubric, verdicts in (system["judge"] or {}).items()
        if rubric != "kappa"
    ]


def calibration_tables(results: Json) -> list[Table]:
    """Lay out a calibration: the error rates, and the share of wrong verdicts by kind of answer."""
    title = f"{results['judge']['name']} on {results['benchmark']}: error rates on known answers"
    rates = _make_table(title, ["rubric"], _ERROR_RATE_COLUMNS)
    columns = ["wrong verdicts", "n", "unparsed"]
    kinds = _make_table("By kind of answer", ["rubric", "answer", "right verdict"], columns)
    for rubric, of_rubric in results["quality"].items():
        for label, cells in _error_rate_rows(rubric, of_rubric):
            rates.add_row(label, *cells)
        for row in of_rubric["kinds"]:
            counts = (_number(row["errors"], ".2f"), str(row["n"]), str(row["unparsed"]))
            kinds.add_row(rubric, row["kind"], row["known"], *counts)
        kinds.add_section()
    return [rates, kinds]


def _error_rate_rows(rubric: str, of_rubric: Json) -> list[tuple[str, list[str]]]:
    """List the rows of a rubric: all questions, and those that its prompts were not optimised on."""
    rows = {rubric: of_rubric}
    untouched: Json | None = of_rubric.get("untouched")
    if untouched is not None:
        rows[f"{rubric}, {untouched['questions']} questions untouched"] = untouched
    return [
        (
            label,
            [format_interval(rates[name]) for name in ("false_accept", "false_reject")]
            + [str(rates["unparsed"]), str(rates["failed"])],
        )
        for label, rates in rows.items()
    ]


def _error_breakdown_table(dataset: Json, systems: Mapping[str, Json]) -> Table:
    groups = score_groups(dataset)
    headings = list(map(short_heading, groups))
    if dataset["benchmark"] == Benchmark.LOCOMO:
        groups.append(Category.ADVERSARIAL.label)
        headings = ["all five", *headings[1:], short_heading(groups[-1])]  # unlike "all" of the official F1
    table = _make_table(_ERROR_TITLE, ["system", "error type"], headings)
    nothing: Json = {"answers": 0, "wrong": 0, "faults": {}}
    for name, system in systems.items():
        counts = [system["diagnosis"].get(group, nothing) for group in groups]
        table.add_row(name, "wrong", *(f"{c['wrong']}/{c['answers']}" for c in counts), end_section=True)
        for error in (error for error in ErrorType if counts[0]["faults"].get(error)):
            shares = (_share(c["faults"].get(error, 0), c["wrong"]) for c in counts)
            table.add_row("", error.value, *shares)
        if _without_stage(counts[0]):
            table.add_row("", _NO_STAGE, *(_share(_without_stage(c), c["wrong"]) for c in counts))
    return table


def _without_stage(counts: Json) -> int:
    """Count the wrong answers whose stage is not known, since it is not recorded what was shown."""
    return counts["wrong"] - sum(counts["faults"].values())


def _interval_tables(
    title: str,
    texts: Sequence[str],
    rows: Mapping[tuple[str, ...], Mapping[str, str]],
    types: Sequence[str],
) -> list[Table]:
    """Lay scores out in one table or, if there are too many, in two: overall scores, and scores by type."""
    groups = list(dict.fromkeys(group for cells in rows.values() for group in cells))
    parts = {title: groups}
    if len(groups) > _MAX_SCORE_COLUMNS:
        parts = {
            title: [group for group in groups if group not in types],
            f"{title}: by type": [group for group in groups if group in types],
        }
    tables = [_make_table(name, texts, list(map(short_heading, part))) for name, part in parts.items()]
    for table, part in zip(tables, parts.values(), strict=True):
        for labels, cells in rows.items():
            table.add_row(*labels, *(cells.get(group, "-") for group in part))
    return tables


def _make_table(title: str, texts: Sequence[str], numbers: Sequence[str]) -> Table:
    plain = Text(title, "table.title")  # data, judges and models may have brackets in their names
    table = Table(title=plain, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for heading in texts:
        table.add_column(heading, no_wrap=True)
    for heading in numbers:
        table.add_column(heading, justify="right")
    return table


def format_interval(score: Json) -> str:
    """Write a score over its interval, for a cell of two lines; a dash if there is no score."""
    value, interval = _value_and_interval(score)
    return value if interval == "-" else f"{value}\n{interval}"


def _value_and_interval(score: Json) -> tuple[str, str]:
    if score["value"] is None or score["low"] is None:
        return _number(score["value"]), "-"
    return f"{score['value']:.3f}", f"{score['low']:.2f}..{score['high']:.2f}"


def _share(count: int, total: int) -> str:
    return f"{count / total:.0%}" if count else "-"


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)
