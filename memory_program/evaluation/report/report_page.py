"""The report as one HTML page that needs nothing but itself: no network, no server, no other file."""

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.table import Table

from locomo.atomic_files import atomic_write_text
from memory_program.core.json_files import Json
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.report.answer_browser import (
    BrowserData,
    SizeBudget,
    build_browser_data,
    gold_answer_text,
)
from memory_program.evaluation.report.figures import svg_figures
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
    """A run that is scored: its folder, what it was about, its results, and its systems in their order."""

    folder: Path
    selection: Selection
    results: Json
    systems: tuple[ScoredSystem, ...]


def write_html_report(path: Path, runs: Sequence[ReportedRun], size_budget: SizeBudget | None = None) -> None:
    """Write the page of some runs; those on one dataset are shown side by side, and compared.

    Args:
        path: the file to write, the whole of it or nothing.
        runs: one at least.
        room: how much of the conversations and banks the page takes; by default what keeps it quick to open.
    """
    size_budget = size_budget or SizeBudget()
    boards = [_DatasetReport(place, of_dataset) for place, of_dataset in enumerate(_by_dataset(runs))]
    browsed = [board.browser_data(size_budget) for board in boards]
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


def _by_dataset(runs: Sequence[ReportedRun]) -> list[list[ReportedRun]]:
    groups: dict[tuple[str, str], list[ReportedRun]] = {}
    for run in runs:
        dataset = run.selection.dataset
        groups.setdefault((dataset.name, dataset.sha256), []).append(run)
    return list(groups.values())


class _DatasetReport:
    """The runs on one dataset, as one set of results."""

    def __init__(self, place: int, runs: Sequence[ReportedRun]) -> None:
        self.place = place
        self.name: str = runs[0].results["dataset"]["name"]
        self.systems: dict[str, ScoredSystem] = {}
        summaries: Json = {}
        for run, prefix in zip(runs, _prefixes(runs), strict=True):
            for system in run.systems:
                name = system.run.system.name
                self.systems[prefix + name] = system
                summaries[prefix + name] = run.results["systems"][name]
        talks = (talk for run in runs for talk in run.selection.conversations)
        self.conversations = {talk.conversation_id: talk for talk in talks}
        asked = (question for run in runs for question in run.selection.questions)
        self.questions = list({question.question_id: question for question in asked}.values())
        first, ceilings = runs[0].results, [run.results["ceiling"] for run in runs]
        differences = (
            first if len(runs) == 1 else compare_systems(self.systems, BootstrapSampler(first["seed"]))
        )
        told = {  # what a run compares itself stays as its results have it
            (prefix + pair["a"], prefix + pair["b"], pair["metric"]): pair
            for run, prefix in zip(runs, _prefixes(runs), strict=True)
            for pair in run.results["comparisons"]
        }
        self.results: Json = {
            "dataset": {**first["dataset"], "questions": len(self.questions)},
            "systems": summaries,
            "ceiling": ceilings[0] if ceilings.count(ceilings[0]) == len(ceilings) else None,
            "comparisons": [
                {**told.get((pair["a"], pair["b"], pair["metric"]), pair), "a": pair["a"], "b": pair["b"]}
                for pair in differences["comparisons"]
            ],
            "not_compared": differences["not_compared"],
        }

    def template_context(self, browsed: BrowserData) -> Json:
        """Give what the template shows."""
        systems: Json = self.results["systems"]
        sessions = sum(len(talk.sessions) for talk in self.conversations.values())
        turns = sum(len(talk.turns) for talk in self.conversations.values())
        return {
            "anchor": f"dataset-{self.place + 1}",
            "name": self.name,
            "scope": f"{len(self.conversations):,} conversations, {sessions:,} sessions, {turns:,} turns, "
            f"{len(self.questions):,} questions; data {self.results['dataset']['sha256'][:8]}",
            "abridged": len(browsed.abridged_conversations),
            "warnings": [
                *(line for name, system in systems.items() for line in result_warnings(name, system)),
                *incomparable_warnings(self.results),
            ],
            "tables": [
                _html_table(table) for table in (*results_tables(self.results), *_bank_tables(self.results))
            ],
            "figures": [{"title": title, "svg": svg} for title, svg in svg_figures(self.results)],
            "examples": list(self._examples()),
            "signatures": [system["signature"] for system in systems.values()],
        }

    def browser_data(self, room: SizeBudget) -> BrowserData:
        """Give what the browser of questions looks up."""
        return build_browser_data(self.name, self.conversations, self.questions, self.systems, room)

    def _examples(self) -> Iterator[Json]:
        """Pick the first wrong answers of each fault, system by system."""
        for name, system in self.systems.items():
            diagnosed = list(zip(system.scored, system.diagnoses, strict=True))
            counts = Counter(diagnosis.error_type for _, diagnosis in diagnosed if diagnosis is not None)
            for fault in (fault for fault in ErrorType if counts[fault]):
                items = [item for item, d in diagnosed if d is not None and d.error_type is fault][:_EXAMPLES]
                examples = [
                    {
                        "place": self.place,
                        "id": item.question.question_id,
                        "question": item.question.text,
                        "gold": gold_answer_text(item.question),
                        "answer": item.record.answer.text if item.record is not None else "",
                    }
                    for item in items
                ]
                yield {"system": name, "fault": fault.value, "count": counts[fault], "examples": examples}


def _prefixes(runs: Sequence[ReportedRun]) -> list[str]:
    """Name the runs apart: by nothing if there is one, by their folders' names, or by their whole paths."""
    if len(runs) == 1:
        return [""]
    names = [run.folder.name for run in runs]
    shown = names if len(set(names)) == len(names) else [run.folder.as_posix() for run in runs]
    return [f"{name}: " for name in shown]


def _bank_tables(results: Json) -> Iterator[Table]:
    """Lay out how banks grew and who did what to them, for each system that has any."""
    for name, system in results["systems"].items():
        growth: Sequence[Mapping[str, float]] = system["growth"]
        if growth:
            table = Table(title=f"Growth of the banks of {name}: means after so many sessions")
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
            table = Table(title=f"Tool use of {name}: operations, and calls that were refused")
            table.add_column("agent")
            for column in columns:
                table.add_column(column, justify="right")
            for agent, counts in tools.items():
                table.add_row(agent, *(f"{counts[column]:,}" for column in columns))
            yield table


def _html_table(table: Table) -> Json:
    """Take a terminal's table apart for HTML."""
    are_numbers = [column.justify == "right" for column in table.columns]
    first, *others = ([str(cell) for cell in column.cells] for column in table.columns)
    named = accumulate(first, lambda above, name: name or above)  # each row says whose it is
    rows = zip(named, *others, strict=True)
    return {
        "title": str(table.title),
        "headings": [
            {"text": str(column.header), "is_number": is_number}
            for column, is_number in zip(table.columns, are_numbers, strict=True)
        ],
        "rows": [
            [_cell(cell, is_number) for cell, is_number in zip(row, are_numbers, strict=True)] for row in rows
        ],
    }


def _cell(text: str, is_number: bool) -> Json:
    value, _, interval = text.partition("\n")
    return {"text": value, "interval": interval, "is_number": is_number}
