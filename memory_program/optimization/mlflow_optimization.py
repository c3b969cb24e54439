"""The files and the MLflow run of an optimisation: plot of the best scores, diff of the prompts, results."""

from collections.abc import Iterator
from pathlib import Path

import dspy
from matplotlib.figure import Figure

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance_tags
from memory_program.optimization.optimization_stage import StageResult
from memory_program.optimization.prompt_text import instruction_diff
from memory_program.tracking import TrackedRun, Tracker, is_already_logged, tracking_location, write_receipt

RESULTS = "results.json"


class OptimizationPublisher:
    """Writes the files of a run into its folder, and logs them to MLflow."""

    def __init__(self, config: OptimizeConfig) -> None:
        """Begin to open MLflow in the background, since it takes seconds."""
        self.uri, artifacts = tracking_location(config.output_dir, config.tracking.tracking_uri)
        self._config = config
        self._tracker = Tracker(self.uri, artifacts) if config.tracking.mlflow else None

    def close(self) -> None:
        """Close the connection to MLflow."""
        if self._tracker is not None:
            self._tracker.close()

    def publish(self, results: Json, stages: list[StageResult], program: dspy.Module) -> None:
        """Write the files, and log a run with a child for every candidate, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        write_json(folder / RESULTS, results)
        files = [folder / RESULTS, self._config.output_file, *_write_pictures(folder, stages)]
        files += _write_diffs(folder, stages)
        if self._tracker is None:
            return
        digest = _results_digest(results)
        if is_already_logged(folder, self.uri, digest):
            return
        parent = TrackedRun(
            _name(results), _params(results), dict(_run_metrics(results)), provenance_tags(results), files
        )
        children = [
            self._child(stage, place, candidate, results)
            for place, stage in enumerate(results["stages"])
            for candidate in stage["candidates"]
        ]
        run_id = self._tracker.log(parent, children)
        self._tracker.log_program(run_id, program)
        write_receipt(folder, self.uri, digest, run_id)

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


def plot_best_scores(stages: list[StageResult]) -> Figure:
    """Draw the best scores so far, on train and on validation, against the calls of the run."""
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


def _write_pictures(folder: Path, stages: list[StageResult]) -> list[Path]:
    path = folder / "best_so_far.png"
    plot_best_scores(stages).savefig(path, dpi=120, bbox_inches="tight")
    return [path]


def _write_diffs(folder: Path, stages: list[StageResult]) -> list[Path]:
    """Write the diff of the prompts for each stage."""
    paths: list[Path] = []
    for place, stage in enumerate(stages):
        path = folder / f"{place}-{stage.target.value}.diff"
        diff = instruction_diff(stage.evaluator.baseline.prompts, stage.choice.winner.prompts)
        path.write_text(diff, encoding="utf-8")
        paths.append(path)
    return paths


def _results_digest(results: Json) -> str:
    """Hash the results of a run, without the order in which threads tried the candidates."""
    scores = [
        (stage["baseline"]["score"], stage["winner"]["score"], stage["comparison"])
        for stage in results["stages"]
    ]
    return content_hash(*(results[name] for name in ("settings", "dataset", "models", "program")), scores)


def _name(results: Json) -> str:
    return f"{results['optimizer']} {results['target']} on {results['dataset']['name']}"


def _params(results: Json) -> Json:
    models: Json = results["models"]
    return {
        **results["settings"],
        "model": models["task"],
        "prompt_model": models["prompts"],
        "judge_model": models["judge"],
    }


def _run_metrics(results: Json) -> Iterator[tuple[str, float]]:
    """List the metrics of a run: its cost, and per target the scores of the last stage."""
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
    yield from _drop_missing(numbers).items()


def _drop_missing(numbers: Json) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}
