"""Where results go: files, a terminal, MLflow."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance_tags
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.report.plots import write_plots
from memory_program.evaluation.report.report_page import REPORT_FILE, ReportedRun, write_html_report
from memory_program.evaluation.report.results_json import (
    EVALUATION_RESULTS_FILE,
    build_evaluation_results,
    write_question_results,
)
from memory_program.evaluation.report.score_tables import print_results
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.tracking import TrackedRun, Tracker, is_already_logged, tracking_location, write_receipt


class EvaluationPublisher:
    """Turns records into results, and hands them out."""

    def __init__(
        self, config: EvaluateConfig, selection: Selection, console: Console, ceiling: Json | None = None
    ) -> None:
        """Prepare; nothing is opened or written yet. For ``ceiling`` see ``build_evaluation_results``."""
        self._ceiling = ceiling
        self._config = config
        self._selection = selection
        self._console = console
        self._uri, self._artifacts = tracking_location(config.output_dir, config.tracking.tracking_uri)
        self._tracker: Tracker | None = None

    def open_tracker(self) -> None:
        """Begin to open MLflow in the background, since it takes seconds; and trace from now on, if asked."""
        if self._config.tracking.mlflow and self._tracker is None:
            self._tracker = Tracker(self._uri, self._artifacts)
            if self._config.traces:
                self._tracker.enable_tracing()

    def close(self) -> None:
        """Let go of MLflow."""
        if self._tracker is not None:
            self._tracker.close()

    def publish(self, recorded: Sequence[SystemRecords], store: BankStore | None) -> ReportedRun:
        """Score the records, write the files, print the tables, and log to MLflow.

        Args:
            recorded: the systems of the run.
            store: where their banks are; None if none of them writes memories.

        Raises:
            StoreError: the database fails.
            TrackingError: MLflow fails; everything else is done.
        """
        scored = tuple(system.score_answers(store) for system in recorded)
        results = build_evaluation_results(self._config, self._selection, scored, self._ceiling)
        folder = self._config.output_dir
        page = self._config.report_file or folder / REPORT_FILE
        reported = ReportedRun(folder, self._selection, results, scored)
        write_json(folder / EVALUATION_RESULTS_FILE, results)
        for system, of_system in zip(recorded, scored, strict=True):
            write_question_results(system.folder / "questions.jsonl", of_system)
        plots = write_plots(folder, results)
        write_html_report(page, [reported])
        print_results(self._console, results)
        for label, path in (("results", folder / EVALUATION_RESULTS_FILE), ("report", page)):
            self._console.print(f"{label}: {path}", highlight=False, markup=False, soft_wrap=True)
        if self._config.tracking.mlflow:
            self._log_to_mlflow(results, recorded, [page, *plots])
        return reported

    def _log_to_mlflow(self, results: Json, recorded: Sequence[SystemRecords], files: Sequence[Path]) -> None:
        """Log the results, unless just these went to the same place before."""
        folder = self._config.output_dir
        digest = content_hash(results["systems"], results["comparisons"], results["dataset"])
        if not is_already_logged(folder, self._uri, digest):
            self.open_tracker()
            assert self._tracker is not None
            name = f"{self._config.output_dir.name} on {results['dataset']['name']}"
            parent = TrackedRun(
                name, {}, {}, provenance_tags(results), [folder / EVALUATION_RESULTS_FILE, *files]
            )
            children = [_make_tracked_run(system, results) for system in recorded]
            write_receipt(folder, self._uri, digest, self._tracker.log(parent, children))
        self._console.print(
            f"compare in MLflow: mlflow ui --backend-store-uri {self._uri}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )


def publish_combined_report(
    page: Path, runs: Sequence[ReportedRun], config: EvaluateConfig, console: Console
) -> None:
    """Write the page of several runs, say where it is, and log it to MLflow as a run of its own.

    Args:
        page: the file to write.
        runs: what is on it.
        config: says whether, and where, MLflow has its runs.
        console: where the addresses are printed.

    Raises:
        TrackingError: MLflow fails; the page is written.
    """
    write_html_report(page, runs)
    console.print(f"report of {len(runs)} runs: {page}", highlight=False, markup=False, soft_wrap=True)
    if config.tracking.mlflow:
        names = ", ".join(run.folder.name for run in runs)
        with closing(Tracker(*tracking_location(config.output_dir, config.tracking.tracking_uri))) as tracker:
            tracker.log(
                TrackedRun(f"report of {names}", {}, {}, provenance_tags(runs[0].results), [page]), []
            )


def _make_tracked_run(system: SystemRecords, results: Json) -> TrackedRun:
    identity = system.run.system
    result = results["systems"][identity.name]
    files = (system.folder / name for name in _FILES)
    return TrackedRun(
        name=identity.name,
        params={
            "system": identity.name,
            "writer": identity.written_by or identity.writer,
            "reader": identity.read_by or identity.reader,
            "judge": system.run.judge.name if system.run.judge is not None else None,
            "temperature": identity.temperature,
            "program": identity.program[:12],
            "seed": results["seed"],
            **identity.settings,
        },
        metrics=dict(_mlflow_metrics(result)),
        tags={**provenance_tags(results), "signature": result["signature"]},
        artifacts=[path for path in files if path.exists()],
    )


_FILES = ("run.json", "program.json", "build.jsonl", "answers.jsonl", "judgements.jsonl", "questions.jsonl")


def _mlflow_metrics(result: Json) -> Iterator[tuple[str, float]]:
    """List the numbers of a system under names that are the same for every system; what is None is absent."""
    intervals = {f"locomo_f1/{name}": score for name, score in result["locomo_f1"].items()}
    intervals |= {f"bleu1/{name}": score for name, score in result["bleu1"].items()}
    intervals |= {f"retrieval/{key}": score for key, score in result["retrieval"].items()}
    intervals |= {f"recall/{key}": score for key, score in result["recall_intervals"].items()}
    for name in ("abstention", "overall_with_abstention", "set_f1"):
        intervals[name] = result[name]
    judge: Json = result["judge"] or {}
    for rubric in (name for name in judge if name != "kappa"):
        shares = {name: share for name, share in judge[rubric].items() if name != "unparsed"}
        intervals |= {f"judge/{rubric}/{name}": share for name, share in shares.items()}
    numbers = {name: score["value"] for name, score in intervals.items()}
    for end in ("low", "high"):
        numbers[f"locomo_f1/all/{end}"] = result["locomo_f1"]["all"][end]
    numbers |= {name: result[name] for name in ("tokens_per_question", "calls", "cost_usd", "seconds")}
    numbers |= {"failures": result["failures"]["all"], "judge/kappa": judge.get("kappa")}
    stages: Sequence[Json] = list(result["usage"].values())
    input_tokens = sum(usage["input_tokens"] for usage in stages)
    numbers["cached_tokens"] = sum(usage["cached_tokens"] for usage in stages)
    numbers["cached_share"] = numbers["cached_tokens"] / input_tokens if input_tokens else None
    numbers["cache_saved_usd"] = sum(usage["saved_usd"] for usage in stages)
    for name, value in numbers.items():
        if value is not None:
            yield name, float(value)
