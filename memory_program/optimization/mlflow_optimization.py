"""Publishing of an optimisation: the plot of its scores, the diff of its prompts, MLflow."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import dspy

from memory_program.configs.groups import tracked_params
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.hashing import content_hash
from memory_program.core.json_files import Json, write_json
from memory_program.core.provenance import provenance_tags
from memory_program.evaluation.report import has_matplotlib
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.optimization_stage import StageResult
from memory_program.optimization.prompt_text import instruction_diff
from memory_program.optimization.saved_program import candidate_json
from memory_program.tracking import CurvePoints, RunTracker, TrackedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RESULTS = "results.json"


class OptimizationPublisher(RunTracker):
    """Logs an optimisation to MLflow while it runs, and writes the files of its results."""

    def __init__(self, config: OptimizeConfig, dataset: Json, say: Callable[[str], None]) -> None:
        """Open the MLflow run in the background; ``say`` prints a line."""
        folder, tracking, later = config.output_dir, config.tracking, "the same command"
        super().__init__("optimize.py", folder, tracking.tracking_uri, say, later, is_on=tracking.mlflow)
        models = {"prompt_model": config.proposer, "judge_model": config.judge}
        self._config = config
        optimizer = "optuna" if config.target is Target.RETRIEVAL else config.optimizer.value
        self._described = TrackedRun(
            f"{optimizer} {config.target.value} on {dataset['name']}",
            {**tracked_params(config), **models},
            provenance_tags(dataset),
            {"name": dataset["name"], "sha256": dataset["sha256"], "context": "training"},
        )
        self.start(self._described)

    def log_candidate(
        self, place: int, target: str, evaluator: CandidateEvaluator, candidate: PromptCandidate
    ) -> None:
        """Log a candidate that was tried on all validation cases, and the best scores so far."""
        if self._config.tracking.mlflow:
            self.log_child(self._child(place, target, candidate_json(self._config, evaluator, candidate)))
            best = _drop_missing({"best/train": evaluator.best.train, "best/val": evaluator.best.val})
            if "best/val" in best:
                self.log_points(CurvePoints(evaluator.best.calls, best, "best/val"))

    def publish(self, results: Json, stages: list[StageResult], program: dspy.Module) -> None:
        """Write the files, and log a run with a child for every candidate, unless that was done before.

        Raises:
            OSError: a file cannot be written.
            TrackingError: MLflow fails; the files are written.
        """
        folder = self._config.output_dir
        self._remove_earlier_results()
        write_json(folder / RESULTS, results)
        files = [folder / RESULTS, self._config.output_file]
        if has_matplotlib():
            path = folder / "best_so_far.png"
            plot_best_scores(stages).savefig(path, dpi=120, bbox_inches="tight")
            files.append(path)
        for place, stage in enumerate(stages):
            path = folder / f"{place}-{stage.target.value}.diff"
            diff = instruction_diff(stage.evaluator.baseline.prompts, stage.choice.winner.prompts)
            path.write_text(diff, encoding="utf-8")
            files.append(path)
        # its cost, and the gain of the last stage of each target; ``score`` is of the last stage of all
        metrics: Json = {
            name: results["calls"][name] for name in ("used", "input_tokens", "output_tokens", "cost_usd")
        }
        for stage in results["stages"]:
            target = stage["target"]
            for name in ("baseline", "winner"):
                score: Json = stage[name]["score"] or {}
                metrics |= {f"{target}/{name}/{end}": score.get(end) for end in ("value", "low", "high")}
                errors = [error for error in ("false_accept", "false_reject") if error in stage[name]]
                metrics |= {f"{target}/{name}/{error}": stage[name][error]["value"] for error in errors}
                metrics["score" if name == "winner" else "score/baseline"] = score.get("value")
            difference: Json = stage["comparison"] or {}
            metrics |= {
                f"{target}/difference/{end}": difference.get(end)
                for end in ("difference", "low", "high", "p_value")
            }
            metrics["score/difference"] = difference.get("difference")
        # the order in which threads tried candidates is no part of the results
        scores = [
            (stage["baseline"]["score"], stage["winner"]["score"], stage["comparison"])
            for stage in results["stages"]
        ]
        final = (results[name] for name in ("settings", "dataset", "models", "program"))
        winners = [f"{stage['target']} {stage['winner']['number']}" for stage in results["stages"]]
        self.finish(
            content_hash(*final, scores),
            replace(
                self._described,
                metrics=_drop_missing(metrics),
                tags={**self._described.tags, "best_candidate": ", ".join(winners)},
                artifacts=files,
            ),
            children=[
                self._child(place, stage["target"], candidate)
                for place, stage in enumerate(results["stages"])
                for candidate in stage["candidates"]
            ],
            program=program,
        )

    def publish_retrieval(self, results: Json) -> None:
        """Write the results of ``--target retrieval``, and log a run with a child for every trial.

        Raises:
            OSError: the file cannot be written.
            TrackingError: MLflow fails; the file is written.
        """
        folder = self._config.output_dir
        self._remove_earlier_results()
        write_json(folder / RESULTS, results)
        found: Json = results["retrieval"]
        # a limit may have ended the run before the comparison
        compared = [name for name in ("baseline", "best") if name in found]
        scores = _drop_missing({f"{name}/val": found[name]["score"] for name in compared})
        trials = [
            replace(
                self._described,
                name=f"trial {number}",
                params=trial["settings"],
                metrics=_drop_missing({"train/score": trial["score"]}),
                tags={**self._described.tags, "number": str(number)},
            )
            for number, trial in enumerate(found["trials"], start=1)
        ]
        described = replace(
            self._described,
            metrics=scores,
            tags={**self._described.tags, "winner": str(found["winner"])},
            artifacts=[folder / RESULTS, self._config.output_file],
        )
        digest = content_hash(results["settings"], results["dataset"], results["retrieval"])
        self.finish(digest, described, children=trials)

    def _remove_earlier_results(self) -> None:
        """Remove the results of an earlier run with other settings; those of this one are written anew."""
        folder = self._config.output_dir
        results = [*(folder / "candidates").glob("*-*-*.json"), *folder.glob("[0-9]*-*.diff")]
        for path in (*results, folder / "best_so_far.png"):
            path.unlink(missing_ok=True)

    def _child(self, place: int, target: str, candidate: Json) -> TrackedRun:
        path = self._config.output_dir / "candidates" / f"{place}-{target}-{candidate['number']}.json"
        write_json(path, candidate)
        prompts: Json = candidate["prompts"]
        demos = sum(len(prompt["demos"]) for prompt in prompts.values())
        metrics = {"train/tries": float(candidate["train"]["tries"]), "demos": float(demos)}
        metrics |= _drop_missing({"train/score": candidate["train"]["score"], "calls": candidate["calls"]})
        for name, ends in (
            ("val", ("value", "low", "high")),
            ("against_baseline", ("difference", "low", "high")),
        ):
            score: Json = candidate[name] or {}
            prefix = "val" if name == "val" else "difference"
            metrics |= _drop_missing({f"{prefix}/{end}": score.get(end) for end in ends})
        # the number depends on the timing of threads, and is no part of what the candidate is
        params: Json = {"stage": place, "target": target, "fingerprint": candidate["fingerprint"][:12]}
        # MLflow shows parameters beside each other: up to 6,000 characters of each instruction
        params |= {f"{name}.instructions": p["instructions"][:6000] for name, p in prompts.items()}
        tags = {**self._described.tags, "number": str(candidate["number"])}
        name = f"{target} {candidate['number']}"
        return replace(
            self._described, name=name, params=params, metrics=metrics, tags=tags, artifacts=[path]
        )


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


def _drop_missing(numbers: Json) -> dict[str, float]:
    return {name: float(value) for name, value in numbers.items() if value is not None}
