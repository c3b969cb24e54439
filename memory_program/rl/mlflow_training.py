"""The outputs of a training besides its weights: program, card, results.json, curves, MLflow."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from memory_program.agents.program import MemoryProgram
from memory_program.configs.groups import MACHINE_SETTINGS, tracked_params
from memory_program.configs.train_config import TrainConfig
from memory_program.core.checkpoints import LogEntry, read_log
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance, provenance_tags
from memory_program.evaluation.report.mlflow_evaluation import system_metrics
from memory_program.rl.base_comparison import BASE, TRAINED, validation_difference
from memory_program.rl.model_card import model_card
from memory_program.rl.rollout_files import sample_columns
from memory_program.rl.training_curves import write_curves
from memory_program.rl.training_data import TrainingSplits
from memory_program.tracking import CurvePoints, RunTracker, TrackedRun

RESULTS = "results.json"
_TABLE_ROWS = 20


def make_training_results(
    config: TrainConfig, splits: TrainingSplits, entries: Sequence[LogEntry], comparison: Json
) -> Json:
    """Make results.json: settings, data, progress, validation scores and the comparison with the base."""
    steps = [entry for entry in entries if entry["kind"] == "step"]
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    best = next(entry for entry in validations if entry["step"] == validations[-1]["best_step"])
    return {
        "settings": config.model_dump(mode="json", exclude={*MACHINE_SETTINGS}),
        "dataset": {
            "name": splits.dataset.name,
            "sha256": splits.dataset.sha256,
            "is_modified": splits.dataset.is_modified,
            **{
                split: [conversation.conversation_id for conversation in getattr(splits, split)]
                for split in ("train", "val", "test")
            },
        },
        **provenance(),
        "steps": len(steps),
        "samples": sum(int(entry["samples"]) for entry in steps),
        "run_s": entries[-1]["run_s"],
        "overhead": sum(e["overhead"] * e["seconds/step"] for e in steps)
        / max(1e-9, sum(e["seconds/step"] for e in steps)),
        "validation": {
            **{"first": validations[0], "best": best, "last": validations[-1]},
            "difference": validation_difference(validations[0], best, config.trainer.optimizer.seed),
        },
        **comparison,
    }


def write_model_card(config: TrainConfig, results: Json) -> None:
    """Write the model card next to the weights.

    Raises:
        OSError: the file cannot be written.
    """
    (config.trained_folder / "README.md").write_text(model_card(config, results), encoding="utf-8")


class TrainingPublisher(RunTracker):
    """Logs a training to MLflow while it runs, and writes the files of its results."""

    def __init__(self, config: TrainConfig, splits: TrainingSplits, say: Callable[[str], None]) -> None:
        """Prepare; ``say`` prints a line."""
        folder, tracking = config.output_dir, config.tracking
        later = f"train.py --mode evaluate --output-dir {shlex.quote(str(folder))}"
        super().__init__("train.py", folder, tracking.tracking_uri, say, later, is_on=tracking.mlflow)
        data = {"name": splits.dataset.name, "sha256": splits.dataset.sha256}
        name = f"train {config.model} on {splits.dataset.name}"
        params = {**tracked_params(config), "reader_model": config.reader}
        self._config = config
        self._described = TrackedRun(name, params, provenance_tags(data), {**data, "context": "training"})

    def begin(self) -> None:
        """Open the MLflow run, with the curves of an earlier process if it lacks them."""
        self.start(self._described)
        for entry in read_log(self._config.output_dir):
            self.log_points(CurvePoints.from_entry(entry))

    def log_entry(self, entry: LogEntry) -> None:
        """Log an entry of the training's log; with a validation, a table of rollouts of the last step."""
        points = CurvePoints.from_entry(entry)
        if entry["kind"] == "validation":
            table = sample_columns(self._config.output_dir, points.step, _TABLE_ROWS)
            points = replace(points, table=table, table_file=f"rollouts/step-{points.step:06d}.json")
        self.log_points(points)

    def publish(self, results: Json, entries: Sequence[LogEntry], program: MemoryProgram) -> None:
        """Write results and curves, and log what MLflow lacks, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        write_json(folder / RESULTS, results)
        files = [
            folder / RESULTS,
            self._config.trained_folder / "README.md",
            *write_curves(folder / "plots", entries),
        ]
        digest = content_hash(
            {name: results[name] for name in ("settings", "dataset", "systems", "validation")}
        )
        gain = (results["comparisons"]["locomo_f1"] or {}).get("difference")
        tags = {"best_system": TRAINED if gain is not None and gain > 0 else BASE}
        run = replace(
            self._described,
            metrics=system_metrics(results["systems"][TRAINED]) | dict(_test_metrics(results)),
            tags={**self._described.tags, **tags},
            artifacts=files,
        )
        self.finish(digest, run, curves=map(CurvePoints.from_entry, entries), program=program)


def _test_metrics(results: Json) -> Iterator[tuple[str, float]]:
    for name, system in results["systems"].items():
        for score in ("abstention", "overall_with_abstention"):
            if system[score]["value"] is not None:
                yield f"test/{name}/{score}", system[score]["value"]
        if system["locomo_f1"]["all"]["value"] is not None:
            yield f"test/{name}/locomo_f1", system["locomo_f1"]["all"]["value"]
    for name, comparison in results["comparisons"].items():
        for end in ("difference", "low", "high", "p_value"):
            if comparison is not None and comparison[end] is not None:
                yield f"test/{name.replace(' ', '_')}/{end}", comparison[end]
