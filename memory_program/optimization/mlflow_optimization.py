"""Publishing of an optimisation: the plot of its scores, the diff of its prompts, MLflow."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import dspy

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance_tags
from memory_program.evaluation.report import has_matplotlib
from memory_program.optimization.optimization_stage import StageResult
from memory_program.optimization.prompt_text import instruction_diff
from memory_program.tracking import RunPublisher, TrackedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = "results.json"


class OptimizationPublisher(RunPublisher):
    """Writes the files of a run into its folder, and logs them to MLflow."""

    def __init__(self, config: OptimizeConfig, say: Callable[[str], None]) -> None:
        """Begin to open MLflow in the background; ``say`` prints a line."""
        super().__init__(
            config.output_dir,
            config.tracking.tracking_uri,
            is_on=config.tracking.mlflow,
            say=say,
            log_later="the same command",
        )
        self._config = config
        self.open_tracker()

    def publish(self, results: Json, stages: list[StageResult], program: dspy.Module) -> None:
        """Write the files, and log a run with a child for every candidate, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        write_json(folder / RESULTS, results)
        files = [folder / RESULTS, self._config.output_file]
        if has_matplotlib():
            path = folder / "best_so_far.png"
            plot_best_scores(stages).savefig(path, dpi=120, bbox_inches="tight")
            files.append(path)
        files += _write_diffs(folder, stages)
        models: Json = results["models"]
        params: Json = {
            **results["settings"],
            "model": models["task"],
            "prompt_model": models["prompts"],
            "judge_model": models["judge"],
        }
        name = f"{results['optimizer']} {results['target']} on {results['dataset']['name']}"
        self.log_once(
            _results_digest(results),
            TrackedRun(name, params, _run_metrics(results), provenance_tags(results), files),
            (
                self._child(stage, place, candidate, results)
                for place, stage in enumerate(results["stages"])
                for candidate in stage["candidates"]
            ),
            program,
        )

    def _child(self, stage: Json, place: int, candidate: Json, results: Json) -> TrackedRun:
        name = f"{stage['target']} {candidate['number']}"
        path = (
            self._config.output_dir / "candidates" / f"{place}-{stage['target']}-{candidate['number']}.json"
        )
        write_json(path, candidate)
        prompts: Json = candidate["prompts"]
        demos = sum(len(prompt["demos"]) for prompt in prompts.values())
        metrics = {"train/tries": float(candidate["train"]["tries"]), "demos": float(demos)}
        metrics |= _drop_missing({"train/score": candidate["train"]["score"], "calls": candidate["calls"]})
        if candidate["val"] is not None:
            metrics |= _drop_missing(
                {f"val/{end}": candidate["val"][end] for end in ("value", "low", "high")}
            )
        if candidate["against_baseline"] is not None:
            difference: Json = candidate["against_baseline"]
            metrics |= _drop_missing(
                {f"difference/{k}": difference[k] for k in ("difference", "low", "high")}
            )
        params = {"number": candidate["number"], "fingerprint": candidate["fingerprint"][:12]}
        # MLflow shows parameters beside each other: up to 6,000 characters of each instruction
        params |= {f"{name}.instructions": p["instructions"][:6000] for name, p in prompts.items()}
        return TrackedRun(name, params, metrics, provenance_tags(results), [path])


def plot_best_scores(stages: list[StageResult]) -> "Figure":
    """Draw the best training and validation scores against the number of calls. Needs matplotlib."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5))
    axes = figure.subplots()
    for stage in stages:
        for split, style in (("train", "--"), ("val", "-")):
            points = [(best.calls, getattr(best, split)) for best in stage.evaluator.curve]
            known = [(calls, score) for calls, score in points if score is not None]
            if known:
                label = f"{stage.target.value}: best on {split}"
                axes.step(*zip(*known, strict=True), style, where="post", marker=".", label=label)
    axes.set_xlabel("model calls of the run")
    axes.set_ylabel("score")
    axes.set_ylim(0, 1)
    if axes.has_data():
        axes.legend(loc="lower right")
    return figure


def _write_diffs(folder: Path, stages: list[StageResult]) -> list[Path]:
    """Write the diff of the prompts of each stage."""
    paths: list[Path] = []
    for place, stage in enumerate(stages):
        path = folder / f"{place}-{stage.target.value}.diff"
        diff = instruction_diff(stage.evaluator.baseline.prompts, stage.choice.winner.prompts)
        path.write_text(diff, encoding="utf-8")
        paths.append(path)
    return paths


def _results_digest(results: Json) -> str:
    """Hash the final results of a run; the order in which threads tried candidates is left out."""
    scores = [
        (stage["baseline"]["score"], stage["winner"]["score"], stage["comparison"])
        for stage in results["stages"]
    ]
    return content_hash(*(results[name] for name in ("settings", "dataset", "models", "program")), scores)


def _run_metrics(results: Json) -> dict[str, float]:
    """Return the numbers of a run: its cost, and the gain of the last stage of each target."""
    numbers: Json = {
        name: results["calls"][name] for name in ("used", "input_tokens", "output_tokens", "cost_usd")
    }
    for stage in results["stages"]:
        for name in ("baseline", "winner"):
            score: Json = stage[name]["score"] or {}
            numbers |= {f"{stage['target']}/{name}/{end}": score.get(end) for end in ("value", "low", "high")}
            errors = [error for error in ("false_accept", "false_reject") if error in stage[name]]
            numbers |= {f"{stage['target']}/{name}/{error}": stage[name][error]["value"] for error in errors}
        difference: Json = stage["comparison"] or {}
        numbers |= {
            f"{stage['target']}/difference/{end}": difference.get(end)
            for end in ("difference", "low", "high", "p_value")
        }
    return _drop_missing(numbers)


def _drop_missing(numbers: Json) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}
