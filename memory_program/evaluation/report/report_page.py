"""The report as one self-contained HTML page: no network, no server, no other file."""

import base64
import gzip
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table

from locomo.atomic_files import atomic_write_text
from memory_program.core.json_files import Json
from memory_program.evaluation.console import format_count
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.report import PLOTS_LEFT_OUT, has_matplotlib
from memory_program.evaluation.report.answer_browser import (
    BrowserData,
    SizeBudget,
    build_browser_data,
    gold_answer_text,
)
from memory_program.evaluation.report.results_json import compare_systems
from memory_program.evaluation.report.score_tables import (
    incomparable_warnings,
    result_warnings,
    results_tables,
)
from memory_program.evaluation.scoring.error_types import ErrorType
from memory_program.evaluation.scoring.question_scores import BootstrapSampler
from memory_program.evaluation.scoring.system_records import ScoredSystem

REPORT_FILE = "report.html"
_EXAMPLES = 3


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A scored run: its folder, conversations and questions, results, and systems in their order."""

    folder: Path
    selection: Selection
    results: Json
    systems: tuple[ScoredSystem, ...]

    @property
    def name(self) -> str:
        """The name of the folder, also of one that is named by a dot."""
        return Path(os.path.abspath(self.folder)).name


def write_html_report(path: Path, runs: Sequence[ReportedRun], size_budget: SizeBudget | None = None) -> None:
    """Write the page of some runs; runs on the same dataset are shown side by side, and compared.

    Args:
        path: the file, written atomically.
        runs: at least one.
        size_budget: limits the conversations and banks on the page; the default keeps it quick to open.
    """
    size_budget = size_budget or SizeBudget()
    groups: dict[tuple[str, str, str], list[ReportedRun]] = {}
    for run in runs:
        dataset = run.selection.dataset  # its version names corrections of the gold
        groups.setdefault((dataset.name, dataset.sha256, dataset.version), []).append(run)
    boards = [_DatasetReport(place, of_dataset) for place, of_dataset in enumerate(groups.values())]
    browsed = [
        build_browser_data(board.name, board.conversations, board.questions, board.systems, size_budget)
        for board in boards
    ]
    records = json.dumps([part.content for part in browsed], separators=(",", ":")).encode()
    templates = Environment(
        loader=PackageLoader("memory_program.evaluation.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = templates.get_template("report.html.j2").render(
        title=f"Memory report: {', '.join(board.name for board in boards)}",
        version=runs[0].results["version"],
        commit=runs[0].results["git_commit"],
        boards=[board.template_context(part) for board, part in zip(boards, browsed, strict=True)],
        records=base64.b64encode(gzip.compress(records, mtime=0)).decode(),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_text(path, page, errors="replace")  # half an emoji is text too


class _DatasetReport:
    """The runs on one dataset, as one set of results."""

    def __init__(self, place: int, runs: Sequence[ReportedRun]) -> None:
        self.place = place
        self.name: str = runs[0].results["dataset"]["name"]
        self.version = runs[0].selection.dataset.version
        self.systems: dict[str, ScoredSystem] = {}
        summaries: Json = {}
        for run, prefix in zip(runs, _prefixes(runs), strict=True):
            for system in run.systems:
                name = system.run.system.name
                self.systems[prefix + name] = system
                summaries[prefix + name] = run.results["systems"][name]
        talks = [talk for run in runs for talk in run.selection.conversations]
        talks.sort(key=lambda talk: len(talk.sessions))  # the whole one, if a run took its first sessions
        whole = {talk.conversation_id: talk for talk in talks}
        order = dict.fromkeys(talk.conversation_id for run in runs for talk in run.selection.conversations)
        self.conversations = {name: whole[name] for name in order}
        asked = (question for run in runs for question in run.selection.questions)
        self.questions = list({question.question_id: question for question in asked}.values())
        first, ceilings = runs[0].results, [run.results["ceiling"] for run in runs]
        differences = (
            first if len(runs) == 1 else compare_systems(self.systems, BootstrapSampler(first["seed"]))
        )
        reported = {  # comparisons within a run stay as in its results
            (prefix + pair["a"], prefix + pair["b"], pair["metric"]): pair
            for run, prefix in zip(runs, _prefixes(runs), strict=True)
            for pair in run.results["comparisons"]
        }
        asked = [{item.question.question_id for item in system.scored} for system in self.systems.values()]
        self.results: Json = {
            "dataset": {**first["dataset"], "questions": len(self.questions)},
            "systems": summaries,
            "ceiling": ceilings[0] if ceilings.count(ceilings[0]) == len(ceilings) else None,
            "comparisons": [
                {**reported.get((pair["a"], pair["b"], pair["metric"]), pair), "a": pair["a"], "b": pair["b"]}
                for pair in differences["comparisons"]
            ],
            "not_compared": differences["not_compared"],
            "asked": dict(zip(self.systems, map(len, asked), strict=True)),
            "asked_of_all": len(set.intersection(*asked)),
        }

    def template_context(self, browsed: BrowserData) -> Json:
        """Return the values that the template shows."""
        systems: Json = self.results["systems"]
        figures: list[Json] = []
        if has_matplotlib():
            from memory_program.evaluation.report.plots import svg_figures

            figures = [{"title": title, "svg": svg} for title, svg in svg_figures(self.results)]
        wrong: list[Json] = []  # the first of each error type, system by system
        for name, system in self.systems.items():
            diagnosed = list(zip(system.scored, system.diagnoses, strict=True))
            for error in ErrorType:
                items = [item for item, found in diagnosed if found is not None and found.error_type is error]
                examples = [
                    {
                        "place": self.place,
                        "id": item.question.question_id,
                        "question": item.question.text,
                        "gold": gold_answer_text(item.question),
                        "answer": item.record.answer.text if item.record is not None else "",
                    }
                    for item in items[:_EXAMPLES]
                ]
                if items:
                    counted = {"error": error.value, "count": len(items), "examples": examples}
                    wrong.append({"system": name, **counted})
        sessions = sum(len(talk.sessions) for talk in self.conversations.values())
        turns = sum(len(talk.turns) for talk in self.conversations.values())
        sizes = (len(self.conversations), sessions, turns, len(self.questions))
        nouns = ("conversation", "session", "turn", "question")
        counts = map(format_count, sizes, nouns)
        return {
            "anchor": f"dataset-{self.place + 1}",
            "name": self.name,
            "scope": f"{', '.join(counts)}; data {self.version}",
            "abridged": len(browsed.abridged_conversations),
            "warnings": [
                *(line for name, system in systems.items() for line in result_warnings(name, system)),
                *incomparable_warnings(self.results),
            ],
            "tables": [
                _html_table(table) for table in (*results_tables(self.results), *_bank_tables(self.results))
            ],
            "figures": figures,
            "figures_left_out": None if has_matplotlib() else PLOTS_LEFT_OUT,
            "examples": wrong,
            "signatures": [system["signature"] for system in systems.values()],
        }


def _prefixes(runs: Sequence[ReportedRun]) -> list[str]:
    """Return a prefix for each run: empty for a single run, else the name or path of its folder."""
    if len(runs) == 1:
        return [""]
    names = [run.name for run in runs]
    shown = names if len(set(names)) == len(names) else [run.folder.as_posix() for run in runs]
    return [f"{name}: " for name in shown]


def _bank_tables(results: Json) -> Iterator[Table]:
    """Lay out how each memory bank grew and which agent made each change, for each system with banks."""
    for name, system in results["systems"].items():
        growth: Sequence[Mapping[str, float]] = system["growth"]
        if growth:
            table = Table(title=f"Bank size of {name}: means after each number of sessions")
            table.add_column("sessions")
            for column in ("banks", "live memories", "tokens"):
                table.add_column(column, justify="right")
            for point in growth:
                session = int(point["session"])
                if session & (session - 1) == 0 or point is growth[-1]:  # 1, 2, 4, 8 and so on, and the last
                    banks, memories, tokens = point["conversations"], point["memories"], point["tokens"]
                    table.add_row(f"{session}", f"{banks:,}", f"{memories:,.1f}", f"{tokens:,.0f}")
            yield table
        tools: Mapping[str, Mapping[str, int]] = system["tools"]
        if tools:
            columns = list(next(iter(tools.values())))
            table = Table(title=f"Tool use of {name}: operations by agent, and refused calls")
            table.add_column("agent")
            for column in columns:
                table.add_column(column, justify="right")
            for agent, counts in tools.items():
                table.add_row(agent, *(f"{counts[column]:,}" for column in columns))
            yield table


def _html_table(table: Table) -> Json:
    """Convert a table for the terminal into the values of an HTML table."""
    are_numbers = [column.justify == "right" for column in table.columns]
    first, *others = ([str(cell) for cell in column.cells] for column in table.columns)
    named = accumulate(first, lambda above, name: name or above)  # HTML rows repeat the name of the system
    rows = zip(named, *others, strict=True)
    return {
        "title": str(table.title),
        "headings": [
            {"text": str(column.header), "is_number": is_number}
            for column, is_number in zip(table.columns, are_numbers, strict=True)
        ],
        "rows": [
            [
                {"text": value, "interval": interval, "is_number": is_number}
                for cell, is_number in zip(row, are_numbers, strict=True)
                for value, _, interval in [cell.partition("\n")]
            ]
            for row in rows
        ],
    }
