"""Size of the report of large runs, and the time a browser takes to open it.

python benchmarks/report.py [--data locomo10.json] [--chromium /usr/bin/chromium] [--check]

One page holds LoCoMo and ten made-up histories of 500 turns, each with three systems, all without a model:
``memory`` stands for a writer that keeps every turn and tidies up, ``full-context`` for a reader that is
shown everything, ``extractive`` is itself. The time is from the address to the first list of questions, in
headless Chromium, each time in a fresh window.
"""

import argparse
import io
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from rich.console import Console

from locomo.types import Session
from memory_program.agents.program import MemorySystem
from memory_program.agents.systems import make_system
from memory_program.bank.memory import Draft, MemoryKind, Provenance
from memory_program.bank.outcomes import Answer, RankedItem, SessionRecord
from memory_program.bank.space import MemorySpace
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.configs.groups import SystemSettings
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.worlds import as_locomo_json, generate_worlds

HISTORIES, TURNS = 10, 500
SIZE_TARGET_BYTES = 5_000_000
OPEN_TARGET_S = 2.0
OPENINGS = 5


class Notes(MemorySystem):
    """Keeps every turn; each session rewords a memory and merges two, as a busy writer would."""

    writes_memories = True

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Write a session down."""
        if space.has_session(session):
            return space.sessions[session.session_id].record
        draft, by = space.fork(), Provenance("notes", session.session_id, "told in this session")
        made = [draft.bank.create([_note(turn.line, turn.turn_id)], by) for turn in session.turns]
        first, *others = [operation.created[0] for operation in made]
        draft.bank.update(first.memory_id, _note(f"In short: {first.text}", *first.sources), by)
        if len(others) > 1:
            both = " ".join(memory.text for memory in others[:2])
            draft.bank.merge([memory.memory_id for memory in others[:2]], _note(both), by)
        record = SessionRecord(session.session_id, operations=len(made) + 2, tool_calls=len(made) + 2)
        draft.ingest(session, record)
        space.adopt(draft)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer with the memory that fits best."""
        found = [scored.memory for scored in space.index.search(space.bank, question, 50)]
        ranked = tuple(RankedItem(memory.memory_id, memory.sources, 30) for memory in found)
        shown = tuple(item.item_id for item in ranked[:10])
        return Answer(found[0].text if found else "", ranked=ranked, shown=shown, context_tokens=300)


class Everything(MemorySystem):
    """Is shown every turn."""

    def remember(self, space: MemorySpace, session: Session) -> SessionRecord:
        """Archive a session."""
        record = SessionRecord(session.session_id)
        if not space.has_session(session):
            space.ingest(session, record)
        return record

    def ask(self, space: MemorySpace, question: str) -> Answer:
        """Answer with the question itself."""
        turns = [turn.turn_id for session in space.archive.sessions for turn in session.turns]
        return Answer(question, shown=tuple(turns), context_tokens=20_000)


def _note(text: str, *sources: str) -> Draft:
    return Draft(text, MemoryKind.EPISODIC, None, sources)


def make(name: str, settings: SystemSettings) -> MemorySystem:
    """Make a system that needs no model under the name of one that does."""
    scripted = {"memory": Notes, "full-context": Everything}
    return scripted[name]() if name in scripted else make_system(name, settings)


def _no_model(name: str, temperature: float) -> Any:  # Any: no system of ``make`` has a model
    return None


def write_report(folder: Path, locomo: Path | None) -> Path:
    """Run everything, and write the page of both runs."""
    histories = folder / "histories.json"
    worlds = generate_worlds(0, HISTORIES, turns=TURNS)
    histories.write_text(json.dumps(as_locomo_json([world.conversation for world in worlds])))
    quiet = Console(file=io.StringIO())
    for name, data in (
        ("locomo", {"dataset": "locomo", "data": locomo}),
        ("histories", {"dataset": str(histories)}),
    ):
        config = EvaluateConfig(
            systems="memory,full-context,extractive",
            writer_model="scripted",
            reader_model="scripted",
            output_dir=folder / name,
            mlflow=False,
            **data,
        )
        evaluate(config, console=quiet, system_factory=make, models=_no_model)
    runs = (folder / "locomo", folder / "histories")
    evaluate(EvaluateConfig(mode="report", runs=runs, mlflow=False), console=quiet)
    return folder / "report.html"


def opening_times_s(report: Path, chromium: str) -> list[float]:
    """Open the page in fresh windows, each time until its questions are listed."""
    times: list[float] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        for _ in range(OPENINGS):
            page = browser.new_page()
            began = time.perf_counter()
            page.goto(report.as_uri())
            page.wait_for_selector("html[data-ready]", state="attached")
            times.append(time.perf_counter() - began)
            page.close()
        browser.close()
    return times


def main() -> int:
    """Measure, print, and with ``--check`` say by the exit status whether the targets are met."""
    parser = argparse.ArgumentParser(description="Measure the size of the report, and how fast it opens.")
    parser.add_argument("--data", type=Path, help="locomo10.json; downloaded once if not given")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    options = parser.parse_args()
    if options.chromium is None:
        parser.error("no chromium is on the PATH: install it, or name it with --chromium")
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(Path(folder), options.data)
        size, times = report.stat().st_size, opening_times_s(report, options.chromium)
    print(f"page: {size / 1e6:.2f} MB")
    print(
        f"opens in {statistics.median(times):.2f} s (median of {len(times)}; the slowest {max(times):.2f} s)"
    )
    missed = size >= SIZE_TARGET_BYTES or statistics.median(times) >= OPEN_TARGET_S
    return 1 if options.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
