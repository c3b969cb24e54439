import io
import re
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from locomo.judge.rubrics import Rubric, Verdict
from locomo.types import ANSWERABLE_CATEGORIES, Category, LongMemEvalType, Question
from memory_program.bank.outcomes import Answer, Outcome, RankedItem
from memory_program.evaluation.console import print_plain, print_table
from memory_program.evaluation.item_records import AnswerRecord, JudgeRecord
from memory_program.evaluation.report.score_tables import print_results, result_warnings, results_tables
from memory_program.evaluation.scoring.error_types import Diagnosis, ErrorType, is_wrong, summarize_diagnoses
from memory_program.evaluation.scoring.question_scores import (
    BootstrapSampler,
    paired_comparisons,
    score_question,
    summarize_system,
)
from memory_program.models.usage import Usage

SYSTEMS = ("memory", "rag", "full-context", "no-memory", "extractive")


def scored(text: str, outcome: Outcome = Outcome.OK) -> Any:
    verdict = JudgeRecord("k", "q", Rubric.LENIENT, Verdict.CORRECT, Outcome.OK, "", Usage(), 0.1)
    return [
        score_question(
            Question(f"t{n % 3}", n, "?", Category(n % 5 + 1), "red kite"),
            AnswerRecord(
                "k", "q", Answer(text if n else "", outcome if n == 0 else Outcome.OK), Usage(), 0.1
            ),
            {"lenient": None if n % 5 == 4 else verdict, "strict": None},
        )
        for n in range(30)
    ]


def diagnosed(item: Any) -> Diagnosis | None:
    """One in three of the wrong answers was never stored, the others were not retrieved."""
    fault = ErrorType.NOT_RETRIEVED if item.question.index % 3 else ErrorType.NEVER_STORED
    return Diagnosis(fault) if is_wrong(item) else None


def results(**texts: str) -> Any:
    items = {name.replace("_", "-"): scored(text) for name, text in texts.items()}
    summaries = {
        name: {
            **summarize_system(found, [], BootstrapSampler(0)),
            "diagnosis": summarize_diagnoses(found, [diagnosed(item) for item in found]),
        }
        for name, found in items.items()
    }
    return {
        "dataset": {
            "name": "locomo",
            "benchmark": "locomo",
            "types": [c.label for c in ANSWERABLE_CATEGORIES],
        },
        "systems": {name: {**summary, "signature": f"sig:{name}"} for name, summary in summaries.items()},
        "ceiling": None,
        "comparisons": paired_comparisons(items, ["lenient"], BootstrapSampler(0)),
        "not_compared": [],
    }


def printed(found: Any, width: int = 120) -> str:
    """Every table of the report, as text."""
    console = Console(file=io.StringIO(), width=width)
    for table in results_tables(found):
        print_table(console, table)
        console.print()
    return console.file.getvalue()


def summary(found: Any, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    print_results(console, found)
    return console.file.getvalue()


ALL_SYSTEMS = {
    "memory": "red kite",
    "rag": "red",
    "full_context": "kite",
    "no_memory": "x",
    "extractive": "y",
}


@pytest.mark.parametrize("show", [printed, summary])
def test_every_column_fits_120_columns(show):
    text = show(results(**ALL_SYSTEMS))
    rows = [line for line in text.splitlines() if "missing in judge" not in line]
    assert max(map(len, rows)) <= 120
    assert "…" not in text
    for heading in ("multi-hop", "temporal", "open-domain", "single-hop", "abstention", "all five"):
        assert heading in text
    for heading in ("@5", "@10", "@25", "@50", "2000 tok", "tokens/question", "calls", "cost", "failures"):
        assert heading in text
    assert all(name in text for name in SYSTEMS)


def test_questions_about_earlier_states_have_a_column_where_some_were_asked():
    found = results(**ALL_SYSTEMS)
    assert "earlier-" not in summary(found)
    for system in found["systems"].values():
        system["earlier_state"] = {"value": 0.625, "low": 0.5, "high": 0.75, "n": 8}
    text = summary(found)
    assert "earlier-" in text
    assert text.count("0.625") == len(SYSTEMS)
    assert max(len(line) for line in text.splitlines() if "missing in judge" not in line) <= 120


def test_the_summary_has_a_line_per_system_and_table():
    found = results(memory="red", rag="x")
    found["ceiling"] = results(memory="red kite")["systems"]["memory"]
    lines = [line.split() for line in summary(found).splitlines()]
    score = found["systems"]["rag"]["locomo_f1"]["all"]
    row, verdicts, _, usage, errors = (line for line in lines if line[:1] == ["rag"])
    assert row[1:3] == [f"{score['value']:.3f}", f"{score['low']:.2f}..{score['high']:.2f}"]
    assert verdicts == ["rag", "lenient", "1.000", "1.00..1.00", "0"]
    assert usage[-1] == "24"
    assert errors[1:] == ["6/30", "33%", "67%"]
    assert [line[:3] for line in lines if line[:1] == ["oracle"]] == [["oracle", "(upper", "bound)"]]


def test_the_summary_ends_with_the_warnings():
    found = results(memory="red")
    assert "memory: 24 missing in judge: run the same with --mode full" in summary(found)


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("show", [printed, summary])
def test_a_narrow_terminal_folds_tables_and_cuts_nothing(show, width):
    found = results(memory="red kite", full_context="kite")
    wide, narrow = show(found), show(found, width)
    rows = [line for line in narrow.splitlines() if "missing in judge" not in line]
    assert max(map(len, rows)) <= width
    assert "…" not in narrow
    assert not Counter(re.findall(r"[\w.,$%+-]+", wide)) - Counter(re.findall(r"[\w.,$%+-]+", narrow))


def test_brackets_in_names_are_shown_as_they_are():
    found = results(memory="red", rag="red")
    found["dataset"]["name"] = "my[/b]talks"
    found["systems"]["with [red] ink"] = found["systems"].pop("rag")
    assert "my[/b]talks" in printed(found)
    assert "with [red] ink" in printed(found)


@pytest.mark.parametrize(("encoding", "written"), [("utf-8", "café: ?"), ("ascii", "caf?: ?")])
def test_characters_that_cannot_be_written_become_question_marks(encoding, written):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding)
    print_plain(Console(file=file), "café: \ud83d")  # half an emoji, as a server cuts one
    file.flush()
    assert raw.getvalue() == f"{written}\n".encode(encoding)


def test_prompt_cache_is_shown_by_stage_with_its_savings():
    found = results(memory="red", rag="red")
    assert "cache" not in printed(found)
    usage, hosted = found["systems"]["memory"]["usage"], "openai/m"
    found["systems"]["memory"]["run"] = {"system": {"writer": hosted, "reader": hosted}, "judge": None}
    usage["build"] |= {"input_tokens": 8000, "cached_tokens": 2000, "saved_usd": 0.0006}
    usage["answer"] |= {"input_tokens": 1000, "cached_tokens": 0, "cost_usd": None}
    table = printed(found).partition("Prompt cache")[2].partition("\n\n")[0]
    rows = [line.split() for line in table.splitlines()]
    assert ["memory", "build", "8,000", "2,000", "25.0%", "$0.0006"] in rows
    assert ["memory", "answer", "1,000", "0", "0.0%", "unknown"] in rows
    assert not any("judge" in row or "rag" in row for row in rows)
    found["systems"]["memory"]["run"]["system"] = {"writer": "pocket", "reader": "local:weights"}
    assert "Prompt cache" not in printed(found)  # only a provider has one


def test_the_oracle_is_shown_below_the_systems():
    found = results(memory="red", no_memory="x")
    assert "oracle" not in printed(found)
    found["ceiling"] = results(memory="red kite")["systems"]["memory"]
    score = f"{found['ceiling']['locomo_f1']['all']['value']:.3f}"
    rows = [line.split() for line in printed(found).partition("Evidence recall")[0].splitlines()]
    assert [row[:4] for row in rows if row[:1] == ["oracle"]] == [["oracle", "(upper", "bound)", score]]


def longmemeval_results() -> Any:
    """Six types, each with one answer right and one wrong, and two questions without an answer."""
    verdicts = (Verdict.CORRECT, Verdict.WRONG)
    found = [
        score_question(
            Question(f"q{n}", 0, "?", kind, "red kite", ("D1:1",), must_abstain=n < 2),
            AnswerRecord(
                "k", "q", Answer("red kite", ranked=(RankedItem("D1:1", ("D1:1",), 9),)), Usage(), 0.1
            ),
            {"lenient": JudgeRecord("k", "q", Rubric.LENIENT, verdicts[n % 2], Outcome.OK, "", Usage(), 0.1)},
        )
        for n, kind in enumerate(kind for kind in LongMemEvalType for _ in verdicts)
    ]
    summary = {
        **summarize_system(found, [], BootstrapSampler(0)),
        "diagnosis": summarize_diagnoses(found, [diagnosed(item) for item in found]),
    }
    types = [kind.label for kind in LongMemEvalType]
    return {
        "dataset": {"name": "longmemeval", "benchmark": "longmemeval", "types": types},
        "systems": {name: {**summary, "signature": f"sig:{name}"} for name in SYSTEMS},
        "ceiling": None,
        "comparisons": [],
        "not_compared": [],
    }


def test_longmemeval_types_have_a_table_that_fits():
    text = printed(longmemeval_results())
    assert max(len(line) for line in text.splitlines()) <= 120
    assert "…" not in text
    together, by_type = text.partition("Judged correct")[2].split("Judged correct: by type")
    assert all(name in together for name in ("all", "mean of types", "abstention", "unparsed"))
    for name in ("user", "assistant", "preference", "multi-", "temporal", "knowledge-"):
        assert name in by_type.partition("Error breakdown")[0]
    row = next(line.split() for line in together.splitlines() if line.split()[:1] == ["rag"])
    assert row == ["rag", "lenient", "0.500", "0.500", "0.500", "0", "-"]


def test_a_column_missing_for_the_first_system_is_kept_for_others():
    found = longmemeval_results()
    judge = found["systems"]["memory"]["judge"]["lenient"]
    unasked = {name: scores for name, scores in judge.items() if name != "abstention"}
    nothing = {"value": None, "low": None, "high": None, "n": 0}
    first = {"abstention": nothing, "judge": {"lenient": unasked, "kappa": None}}
    found["systems"]["memory"] = {**found["systems"]["memory"], **first}
    laid_out = {
        str(table.title): {column.header: list(column.cells) for column in table.columns}
        for table in results_tables(found)
    }
    scores, judged = (
        next(t for name, t in laid_out.items() if part in name) for part in ("token F1", "Judged")
    )
    assert list(judged)[-3:] == ["abstention", "unparsed", "kappa"]
    assert [cell[:5] for cell in scores["abstention"]] == ["-", *["0.000"] * 4]
    assert [cell[:5] for cell in judged["abstention"]] == ["-", *["0.500"] * 4]


def test_retrieval_scores_are_shown_if_there_are_rankings():
    assert "Retrieval: recall@k, full recall@k, NDCG@k" in printed(longmemeval_results())
    assert "Retrieval" not in printed(results(no_memory="x"))


def test_error_types_are_shares_of_wrong_answers():
    found = results(rag="x")
    rows = [line.split("  ") for line in printed(found).partition("Error breakdown")[2].splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert ["rag", "wrong", "6/30", "0/6", "0/6", "0/6", "0/6", "6/6"] in cells
    assert ["never stored", "33%", "-", "-", "-", "-", "33%"] in cells
    assert ["stored but not retrieved", "67%", "-", "-", "-", "-", "67%"] in cells


def test_an_interval_is_shown_below_its_score():
    found = results(memory="red")
    score = found["systems"]["memory"]["locomo_f1"]["all"]
    lines = printed(found).partition("Evidence recall")[0].splitlines()
    (row,) = (number for number, line in enumerate(lines) if line.split()[:1] == ["memory"])
    assert lines[row].split()[1] == f"{score['value']:.3f}"
    assert lines[row + 1].split()[0] == f"{score['low']:.2f}..{score['high']:.2f}"


def test_each_kind_of_failure_has_a_warning():
    failures = {
        "build": {"error": 2, "unparsed": 1, "truncated": 0, "missing": 0},
        "answer": {"error": 0, "unparsed": 0, "truncated": 0, "missing": 4},
        "judge": {"error": 0, "unparsed": 0, "truncated": 0, "missing": 0},
    }
    assert result_warnings("rag", {"failures": failures}) == [
        "rag: 3 failed in build (2 error, 1 unparsed), counted but not scored; --retry-errors repeats them",
        "rag: 4 missing in answer: run the same with --mode full",
    ]
