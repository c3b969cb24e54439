"""The outputs of a training besides its weights: program, card, results.json, curves, MLflow."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence

from memory_program import __version__
from memory_program.agents.program import MemoryProgram
from memory_program.configs.train_config import TrainConfig
from memory_program.configs.trainer_groups import Part
from memory_program.core.checkpoints import LogEntry
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import git_commit, lock_hash, provenance_tags
from memory_program.rl.base_comparison import validation_difference
from memory_program.rl.model_card import model_card
from memory_program.rl.training_curves import write_curves
from memory_program.rl.training_data import TrainingSplits
from memory_program.tracking import RunPublisher, TrackedRun

RESULTS = "results.json"
_MACHINE_SETTINGS = {
    "arbor_config",
    "api_base",
    "reader_api_base",
    "judge_api_base",
    "data",
    "mlflow",
    "concurrency",
    "output_dir",
    "program",
    "push_to_hub",
    "tracking_uri",
}


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
    trainings = {part: _summarize_log(log, config.trainer.optimizer.seed) for part, log in logs.items()}
    entries = [entry for log in logs.values() for entry in log]
    steps = [entry for entry in entries if entry["kind"] == "step"]
    return {
        "settings": config.model_dump(mode="json", exclude=_MACHINE_SETTINGS),
        "dataset": {
            "name": splits.dataset.name,
            "sha256": splits.dataset.sha256,
            "is_modified": splits.dataset.is_modified,
            **{
                split: [conversation.conversation_id for conversation in getattr(splits, split)]
                for split in ("train", "val", "test")
            },
        },
        "version": __version__,
        "git_commit": git_commit(),
        "lock_hash": lock_hash(),
        "steps": len(steps),
        "samples": sum(int(entry["samples"]) for entry in steps),
        "run_s": sum(log[-1]["run_s"] for log in logs.values()),
        "overhead": sum(e["overhead"] * e["seconds/step"] for e in steps)
        / max(1e-9, sum(e["seconds/step"] for e in steps)),
        "trainings": trainings,
        "validation": trainings[config.parts[-1]]["validation"],
        **comparison,
    }


def _summarize_log(entries: Sequence[LogEntry], seed: int) -> Json:
    validations = [entry for entry in entries if entry["kind"] == "validation"]
    best = next(entry for entry in validations if entry["step"] == validations[-1]["best_step"])
    return {
        "steps": sum(entry["kind"] == "step" for entry in entries),
        "validation": {
            **{"first": validations[0], "best": best, "last": validations[-1]},
            "difference": validation_difference(validations[0], best, seed),
        },
    }


def write_model_card(config: TrainConfig, results: Json) -> None:
    """Write the model card next to the weights.

    Raises:
        OSError: the file cannot be written.
    """
    (config.trained_folder / "README.md").write_text(model_card(config, results), encoding="utf-8")


class TrainingPublisher(RunPublisher):
    """Writes the files of a run into its folder, and logs them to MLflow."""

    def __init__(self, config: TrainConfig, say: Callable[[str], None]) -> None:
        """Begin to open MLflow in the background; ``say`` prints a line."""
        super().__init__(
            config.output_dir,
            config.tracking.tracking_uri,
            is_on=config.tracking.mlflow,
            say=say,
            log_later=f"train.py --mode evaluate --output-dir {shlex.quote(str(config.output_dir))}",
        )
        self._config = config
        self.open_tracker()

    def publish(self, results: Json, logs: Mapping[Part, Sequence[LogEntry]], program: MemoryProgram) -> None:
        """Write results and curves, and log the run with its curves, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        write_json(folder / RESULTS, results)
        files = [folder / RESULTS, self._config.trained_folder / "README.md"]
        curves: dict[str, list[tuple[int, float]]] = {}
        for part, entries in logs.items():
            prefix = f"{part}-" if len(logs) > 1 else ""
            files += write_curves(folder / "plots", entries, prefix)
            curves |= {f"{prefix}{name}": points for name, points in metric_curves(entries).items()}
        digest = content_hash(
            {name: results[name] for name in ("settings", "dataset", "systems", "validation")}
        )
        run = TrackedRun(
            name=f"train {results['settings']['model']} on {results['dataset']['name']}",
            params=results["settings"],
            metrics=dict(_test_metrics(results)),
            tags=provenance_tags(results),
            artifacts=files,
            curves=curves,
        )
        self.log_once(digest, run, program=program)


def metric_curves(entries: Sequence[LogEntry]) -> dict[str, list[tuple[int, float]]]:
    """Collect each number of a log by step; names of validation numbers begin with ``validation/``."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for entry in entries:
        prefix = "validation/" if entry["kind"] == "validation" else ""
        for name, value in entry.items():
            if name not in ("step", "kind") and isinstance(value, int | float):
                curves.setdefault(f"{prefix}{name}", []).append((entry["step"], float(value)))
    return curves


def _test_metrics(results: Json) -> Iterator[tuple[str, float]]:
    for name, system in results["systems"].items():
        name = name.replace(" ", "_")
        for score in ("abstention", "overall_with_abstention"):
            if system[score]["value"] is not None:
                yield f"test/{name}/{score}", system[score]["value"]
        if system["locomo_f1"]["all"]["value"] is not None:
            yield f"test/{name}/locomo_f1", system["locomo_f1"]["all"]["value"]
    for name, comparison in results["comparisons"].items():
        for end in ("difference", "low", "high", "p_value"):
            if comparison is not None and comparison[end] is not None:
                yield f"test/{name.replace(' ', '_')}/{end}", comparison[end]
