"""The outputs of a training besides its weights: program, card, results.json, curves, MLflow."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from memory_program.agents.program import MemoryProgram
from memory_program.configs.groups import MACHINE_SETTINGS, tracked_params
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import Part
from memory_program.core.checkpoints import LogEntry, read_log
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance, provenance_tags
from memory_program.evaluation.report.mlflow_evaluation import system_metrics
from memory_program.rl.base_comparison import validation_difference
from memory_program.rl.model_card import model_card
from memory_program.rl.rollout_files import sample_columns
from memory_program.rl.training_curves import write_curves
from memory_program.rl.training_data import TrainingSplits
from memory_program.tracking import CurvePoints, RunTracker, TrackedRun

RESULTS = "results.json"
_TABLE_ROWS = 20


def make_training_results(
    config: TrainConfig, splits: TrainingSplits, logs: Mapping[Part, Sequence[LogEntry]], comparison: Json
) -> Json:
    """Make results.json: settings, data, progress, validation scores and the comparison with the base.

    Args:
        config: of the training.
        splits: the data.
        logs: the log of each part that was trained.
        comparison: of ``compare_with_base``.
    """
    trainings: Json = {}
    for part, log in logs.items():
        validations = [entry for entry in log if entry["kind"] == "validation"]
        first, last = validations[0], validations[-1]
        best = next(entry for entry in validations if entry["step"] == last["best_step"])
        difference = validation_difference(first, best, config.trainer.optimizer.seed)
        trainings[part] = {
            "steps": sum(entry["kind"] == "step" for entry in log),
            "validation": {"first": first, "best": best, "last": last, "difference": difference},
        }
    entries = [entry for log in logs.values() for entry in log]
    steps = [entry for entry in entries if entry["kind"] == "step"]
    return {
        "settings": config.model_dump(mode="json", exclude={*MACHINE_SETTINGS, "program"}),
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
        "run_s": sum(log[-1]["run_s"] for log in logs.values()),
        "overhead": sum(e["overhead"] * e["seconds/step"] for e in steps)
        / max(1e-9, sum(e["seconds/step"] for e in steps)),
        "trainings": trainings,
        "validation": trainings[config.parts[-1]]["validation"],
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
        for part in self._config.parts:
            for entry in read_log(self._config.part_folder(part)):
                self.log_points(self._points(entry, part))

    def log_entry(self, entry: LogEntry, part: Part) -> None:
        """Log an entry of a part's log; with a validation, a table of rollouts of the last step."""
        points = self._points(entry, part)
        if entry["kind"] == "validation":
            table = sample_columns(self._config.part_folder(part), points.step, _TABLE_ROWS)
            file = f"rollouts/{self._prefix(part)}step-{points.step:06d}.json"
            points = replace(points, table=table, table_file=file)
        self.log_points(points)

    def _points(self, entry: LogEntry, part: Part) -> CurvePoints:
        points, prefix = CurvePoints.from_entry(entry), self._prefix(part)
        values = {f"{prefix}{name}": value for name, value in points.values.items()}
        return replace(points, values=values, marker=f"{prefix}{points.marker}")

    def _prefix(self, part: Part) -> str:
        return f"{part}-" if len(self._config.parts) > 1 else ""

    def publish(self, results: Json, logs: Mapping[Part, Sequence[LogEntry]], program: MemoryProgram) -> None:
        """Write results and curves, and log what MLflow lacks, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        write_json(folder / RESULTS, results)
        files = [folder / RESULTS, self._config.trained_folder / "README.md"]
        points: list[CurvePoints] = []
        for part, entries in logs.items():
            files += write_curves(folder / "plots", entries, self._prefix(part))
            points += [self._points(entry, part) for entry in entries]
        digest = content_hash(
            {name: results[name] for name in ("settings", "dataset", "systems", "validation")}
        )
        systems: dict[str, Json] = results["systems"]
        best = max(systems, key=lambda name: systems[name]["locomo_f1"]["all"]["value"] or 0.0)
        trained = list(systems)[-1]  # all that was trained, after the base and its parts
        metrics = system_metrics(systems[trained])
        for name, system in systems.items():
            scores = {score: system[score] for score in ("abstention", "overall_with_abstention")}
            for score, found in {**scores, "locomo_f1": system["locomo_f1"]["all"]}.items():
                if found["value"] is not None:
                    metrics[f"test/{name.replace(' ', '_')}/{score}"] = found["value"]
        for name, comparison in results["comparisons"].items():
            for end in ("difference", "low", "high", "p_value"):
                if comparison is not None and comparison[end] is not None:
                    metrics[f"test/{name.replace(' ', '_')}/{end}"] = comparison[end]
        run = replace(
            self._described,
            metrics=metrics,
            tags={**self._described.tags, "best_system": best},
            artifacts=files,
        )
        self.finish(digest, run, curves=points, program=program)
