"""Publishing of evaluation results: files, tables on the terminal, MLflow."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import EvaluateConfig, Mode
from memory_program.configs.groups import tracked_params
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance_tags
from memory_program.evaluation.console import print_plain
from memory_program.evaluation.question_selection import Selection
from memory_program.evaluation.report import PLOTS_LEFT_OUT, has_matplotlib
from memory_program.evaluation.report.report_page import REPORT_FILE, ReportedRun, write_html_report
from memory_program.evaluation.report.results_json import (
    EVALUATION_RESULTS_FILE,
    build_evaluation_results,
    write_question_results,
)
from memory_program.evaluation.report.score_tables import print_results
from memory_program.evaluation.scoring.system_records import SystemRecords
from memory_program.tracking import RunTracker, TraceLabels, TrackedRun

_RECORD_FILES = (
    *("run.json", "program.json", "build.jsonl", "answers.jsonl"),
    *("judgements.jsonl", "questions.jsonl"),
)


class EvaluationPublisher(RunTracker):
    """Publishes what the records give: the results of each system when it is done, and of all at the end."""

    def __init__(
        self, config: EvaluateConfig, selection: Selection, console: Console, oracle: Json | None = None
    ) -> None:
        """Prepare; nothing is opened or written yet. For ``oracle`` see ``build_evaluation_results``."""
        folder, uri, say = config.output_dir, config.tracking.tracking_uri, partial(print_plain, console)
        later = f"evaluate.py {shlex.quote(str(folder))} --mode report"
        later += f" --tracking-uri {shlex.quote(uri)}" if uri else ""
        needed = config.mode is Mode.REPORT
        is_on = config.tracking.mlflow
        super().__init__("evaluate.py", folder, uri, say, None if needed else later, is_on=is_on)
        self._config, self._selection, self._console, self._oracle = config, selection, console, oracle

    def begin(self) -> None:
        """Open the MLflow run of all systems."""
        self.start(self._describe())

    def begin_system(self, system: SystemRecords) -> None:
        """Open the MLflow run of a system."""
        self.log_child(self._describe_system(system))

    def trace_labels(self, system: SystemRecords) -> TraceLabels:
        """Return the labels for the traces of a system."""
        return TraceLabels(system.run.system.name, self.find_child(self._describe_system(system)))

    def publish_system(self, system: SystemRecords, store: BankStore | None) -> None:
        """Log the scores of a system that is done. For ``store`` see ``publish``.

        Raises:
            StoreError: the database fails.
        """
        if self._config.tracking.mlflow:
            scored = system.score_answers(store)
            write_question_results(system.folder / "questions.jsonl", scored)
            results = build_evaluation_results(self._config, self._selection, [scored])
            self.log_child(self._describe_system(system, results["systems"][scored.run.system.name]))

    def publish(self, recorded: Sequence[SystemRecords], store: BankStore | None) -> ReportedRun:
        """Score the records, write the files, print the tables, and log to MLflow.

        Args:
            recorded: the systems of the run.
            store: keeps their banks; None if none of them writes memories.

        Raises:
            StoreError: the database fails.
            TrackingError: MLflow fails; everything else is done.
        """
        scored = tuple(system.score_answers(store) for system in recorded)
        results = build_evaluation_results(self._config, self._selection, scored, self._oracle)
        folder = self._config.output_dir
        path, page = folder / EVALUATION_RESULTS_FILE, self._config.report_file or folder / REPORT_FILE
        reported = ReportedRun(folder, self._selection, results, scored)
        write_json(path, results)
        for system, of_system in zip(recorded, scored, strict=True):
            write_question_results(system.folder / "questions.jsonl", of_system)
        plots: list[Path] = []
        if has_matplotlib():
            from memory_program.evaluation.report.plots import write_plots

            plots = write_plots(folder, results)
        write_html_report(page, [reported])
        print_results(self._console, results)
        if not has_matplotlib():
            print_plain(self._console, PLOTS_LEFT_OUT)
        print_plain(self._console, f"results: {path}")
        print_plain(self._console, f"report: {page}")
        systems, run = results["systems"], self._describe()

        def headline(name: str) -> float:  # the score of the judge, or else the official F1
            judge: Json = systems[name]["judge"] or {}
            score = next((judge[rubric]["all"] for rubric in ("strict", "lenient") if rubric in judge), None)
            value = (score or systems[name]["locomo_f1"]["all"])["value"]
            return -1.0 if value is None else value

        best = max(systems, key=headline)
        self.finish(
            content_hash(systems, results["comparisons"], results["dataset"]),
            replace(
                run,
                metrics=system_metrics(systems[best]),
                tags={**run.tags, "best_system": best, "signature": systems[best]["signature"]},
                artifacts=[path, page, *plots],
            ),
            children=[self._describe_system(s, systems[s.run.system.name]) for s in recorded],
        )
        return reported

    def _describe(self) -> TrackedRun:
        data = {"name": self._selection.dataset.name, "sha256": self._selection.dataset.sha256}
        models = {"writer": self._config.writer, "reader": self._config.reader, "judge": self._config.judge}
        return TrackedRun(
            f"{self._config.output_dir.resolve().name} on {data['name']}",
            {**tracked_params(self._config), **models},
            provenance_tags(data),
            {**data, "context": "evaluation"},
        )

    def _describe_system(self, system: SystemRecords, result: Json | None = None) -> TrackedRun:
        identity, run = system.run.system, self._describe()
        params = {
            "system": identity.name,
            "writer": identity.written_by or identity.writer,
            "reader": identity.read_by or identity.reader,
            "judge": system.run.judge.name if system.run.judge is not None else None,
            "temperature": identity.temperature,
            "program": identity.program[:12],
            "seed": self._config.seed,
            **identity.settings,
        }
        child = replace(run, name=identity.name, params=params)
        if result is None:
            return child
        files = (system.folder / name for name in _RECORD_FILES)
        return replace(
            child,
            metrics=system_metrics(result),
            tags={**run.tags, "signature": result["signature"]},
            artifacts=[path for path in files if path.exists()],
        )


def system_metrics(result: Json) -> dict[str, float]:
    """Return the numbers of a system, under the same names for every system, without those that are None."""
    intervals = {f"locomo_f1/{name}": score for name, score in result["locomo_f1"].items()}
    intervals |= {f"bleu1/{name}": score for name, score in result["bleu1"].items()}
    intervals |= {f"retrieval/{key}": score for key, score in result["retrieval"].items()}
    intervals |= {f"recall/{key}": score for key, score in result["recall_intervals"].items()}
    intervals |= {name: result[name] for name in ("abstention", "overall_with_abstention", "set_f1")}
    judge: Json = result["judge"] or {}
    for rubric in (name for name in judge if name != "kappa"):
        shares = {name: share for name, share in judge[rubric].items() if name != "unparsed"}
        intervals |= {f"judge/{rubric}/{name}": share for name, share in shares.items()}
    numbers: dict[str, float | None] = {name: score["value"] for name, score in intervals.items()}
    numbers |= {f"locomo_f1/all/{end}": result["locomo_f1"]["all"][end] for end in ("low", "high")}
    numbers |= {name: result[name] for name in ("tokens_per_question", "calls", "cost_usd", "seconds")}
    numbers["cost_per_correct_usd"] = result.get("cost_per_correct_usd")
    numbers |= {
        f"seconds/{item}/{share}": value
        for item, of_item in result["latency"]["seconds"].items()
        for share, value in of_item.items()
    }
    numbers |= {"failures": result["failures"]["all"], "judge/kappa": judge.get("kappa")}
    stages: Sequence[Mapping[str, float]] = list(result["usage"].values())
    input_tokens = sum(usage["input_tokens"] for usage in stages)
    cached_tokens = sum(usage["cached_tokens"] for usage in stages)
    numbers["cached_tokens"] = cached_tokens
    numbers["cached_share"] = cached_tokens / input_tokens if input_tokens else None
    numbers["cache_saved_usd"] = sum(usage["saved_usd"] for usage in stages)
    return {name: float(value) for name, value in numbers.items() if value is not None}
