"""Search for retrieval settings: Optuna proposes them, the reader answers with them, validation decides."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean

import numpy as np
import optuna

from locomo.statistics import PairedComparison, paired_comparison
from memory_program.agents.context import MemoryContext
from memory_program.agents.reader import QAReader
from memory_program.bank.space import MemorySpace
from memory_program.configs.groups import MACHINE_SETTINGS
from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.errors import RunFailedError
from memory_program.core.json_files import Json
from memory_program.core.parallel import run_parallel
from memory_program.core.provenance import provenance
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_metric import MemoryAttempt
from memory_program.optimization.candidate_selection import MAX_UNSCORED_SHARE, MIN_GAIN
from memory_program.optimization.dev_examples import MemoryCase
from memory_program.optimization.memory_target import MemoryOptimizationTarget
from memory_program.rl.rewards import AnswerMetric

Settings = dict[str, float | bool]
"""Retrieval settings by the names of their flags: top_k, min_relative_score, with_verbatim_turns, and with
--retrieval hybrid dense_weight."""


@dataclass(frozen=True, slots=True)
class RetrievalTrial:
    """Settings, and the score of each question by its case id; None where a call failed."""

    settings: Settings
    scores: dict[str, float | None]

    @property
    def score(self) -> float:
        """The mean over the questions that have a score.

        Raises:
            RunFailedError: none has one.
        """
        present = [value for value in self.scores.values() if value is not None]
        if not present:
            raise RunFailedError(
                "the reader failed on every question: see --model, and start the command again"
            )
        return fmean(present)

    @property
    def answered(self) -> int:
        """The number of questions with a score."""
        return sum(value is not None for value in self.scores.values())

    def compares_with(self, baseline: "RetrievalTrial") -> bool:
        """Tell if nearly as many questions have a score as in another trial: failures are not random."""
        return self.answered > 0 and self.answered >= (1 - MAX_UNSCORED_SHARE) * baseline.answered


@dataclass(frozen=True, slots=True)
class RetrievalChoice:
    """All trials on train, the baseline first; the baseline and the best of them on validation."""

    trials: list[RetrievalTrial]
    baseline: RetrievalTrial
    best: RetrievalTrial
    comparison: PairedComparison | None

    @property
    def winner(self) -> RetrievalTrial:
        """The best trial if it beats the baseline on validation, else the baseline."""
        found = self.comparison
        is_better = found is not None and found.difference > MIN_GAIN
        return self.best if is_better and self.best.compares_with(self.baseline) else self.baseline

    def summary(self) -> list[str]:
        """Say in lines what was found, and which settings won."""
        found = self.comparison
        if self.best is self.baseline:
            return ["retrieval: no settings beat the present ones on train, which stay"]
        if found is None or not self.best.compares_with(self.baseline):
            return [
                f"retrieval: with the best settings of train only {self.best.answered} of "
                f"{len(self.best.scores)} validation questions have a score; the present ones stay"
            ]
        by = f"{found.difference:+.3f} (p {found.p_value:.2f}, n {found.n})"
        after = fmean(  # as the difference: of the questions on which both have a score
            score
            for case_id, score in self.best.scores.items()
            if score is not None and self.baseline.scores[case_id] is not None
        )
        scores = f"{after - found.difference:.3f} -> {after:.3f} on validation, {by}"
        stays = "" if self.winner is self.best else "; the present settings stay"
        flags = " ".join(f"{name}={value}" for name, value in self.winner.settings.items())
        return [f"retrieval: {scores}{stays}", flags]


class RetrievalTuner:
    """Tries retrieval settings on questions, with the same reader and the same memories."""

    def __init__(
        self,
        config: OptimizeConfig,
        reader: QAReader,
        score: AnswerMetric,
        calls: ReplyCache,
        probe: Callable[[], None],
    ) -> None:
        """Take the settings to begin with from a config; ``probe`` is that of ``StageContext``."""
        self._config, self._reader, self._score, self._probe = config, reader, score, probe
        self.calls = calls
        """The calls of the run."""
        self._spaces: dict[tuple[str, float], MemorySpace] = {}
        self.trials: list[RetrievalTrial] = []
        """The trials on train so far, the present settings first."""
        retrieval, search = config.system.retrieval, config.search
        self.present: Settings = {
            "top_k": retrieval.top_k,
            "min_relative_score": retrieval.min_relative_score,
            "with_verbatim_turns": config.system.reader.with_verbatim_turns,
            **({"dense_weight": search.dense_weight} if search.retrieval == "hybrid" else {}),
        }
        """The settings to begin with."""

    def search(self, train: Sequence[MemoryCase], say: Callable[[str], None]) -> None:
        """Search on train by TPE (Bergstra et al. 2011, NeurIPS).

        ``say`` is called with a line for each trial.

        Raises:
            RunFailedError: the reader fails on every question under the present settings.
            ModelError: a model no longer answers.
            RunStopped: a limit of the run is reached.
        """
        config, trials = self._config, self.trials
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # it warns of each error that is raised anyway
        seed = config.seed % 2**32  # NumPy takes no larger one
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=5)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.enqueue_trial(dict(self.present))

        def objective(trial: optuna.Trial) -> float:
            settings: Settings = {
                "top_k": trial.suggest_int("top_k", 1, 50, log=True),
                "min_relative_score": trial.suggest_float("min_relative_score", 0.0, 1.0),
                "with_verbatim_turns": trial.suggest_categorical("with_verbatim_turns", [False, True]),
            }
            if config.search.retrieval == "hybrid":
                settings["dense_weight"] = trial.suggest_float("dense_weight", 0.05, 10.0, log=True)
            trials.append(self._try(settings, train))
            value, lost = self._rank(trials[-1]), len(train) - trials[-1].answered
            shown = ", ".join(f"{name}={value:.3g}" for name, value in settings.items())
            shown += f" ({lost} of {len(train)} questions have no score)" if lost else ""
            say(f"  trial {len(trials)} of {config.retrieval_trials}: {value:.3f}, {shown}")
            return value

        study.optimize(objective, n_trials=config.retrieval_trials)

    def choose(self, val: Sequence[MemoryCase]) -> RetrievalChoice:
        """Compare the best trial so far with the present settings on val.

        Raises:
            RunFailedError: the reader fails on every question under the present settings.
            ModelError: a model no longer answers.
            RunStopped: a limit of the run is reached.
        """
        trials = self.trials
        best = max(trials, key=self._rank)  # of equals the first: the baseline, if it is one
        baseline = self._try(trials[0].settings, val)
        _ = baseline.score  # raises if there is nothing to compare with
        if best is trials[0]:
            return RetrievalChoice(trials, baseline, baseline, None)
        tried = self._try(best.settings, val)
        pairs = [
            (value, base, case.group)
            for case in val
            if (value := tried.scores[case.case_id]) is not None
            and (base := baseline.scores[case.case_id]) is not None
        ]
        comparison = None
        if pairs:
            ours, theirs, groups = zip(*pairs, strict=True)
            rng = np.random.default_rng(self._config.seed)
            comparison = paired_comparison(ours, theirs, groups, rng=rng)
        return RetrievalChoice(trials, baseline, tried, comparison)

    def _rank(self, trial: RetrievalTrial) -> float:
        """Score a trial; 0 if too many questions were lost to compare it with the present settings."""
        first = self.trials[0]
        return trial.score if trial is first or trial.compares_with(first) else 0.0

    def _try(self, settings: Settings, cases: Sequence[MemoryCase]) -> RetrievalTrial:
        """Answer the questions of cases under settings.

        Raises:
            ModelError: none has a score, and a model does not answer.
            RunStopped: a limit of the run is reached.
        """
        self._reader.context = MemoryContext(
            int(settings["top_k"]),
            self._config.system.retrieval.reader_budget,
            float(settings["min_relative_score"]),
            with_archive=bool(settings["with_verbatim_turns"]),
            adds_dates=self._config.system.reader.add_dates,
        )
        weight = settings.get("dense_weight")

        def answer(case: MemoryCase) -> float | None:
            (question,) = case.questions
            reply = self._reader.ask(spaces[case.case_id], question.dated_text)
            return MemoryAttempt(case, "", (reply,), case.memories, self._score).value()

        spaces: dict[str, MemorySpace] = {}  # by case, under another weight of the embedding model
        for case in cases:
            known = case.memories
            spaces[case.case_id] = known
            if weight is None or known.index.dense is None:
                continue
            key = (known.namespace, weight)
            if key not in self._spaces:
                dense = known.index.dense.weighted(weight)
                space = MemorySpace(known.namespace, known.bank.fork(), dense=dense)
                space.restore(list(known.sessions.values()))
                self._spaces = {**{k: s for k, s in self._spaces.items() if k[1] == weight}, key: space}
            spaces[case.case_id] = self._spaces[key]
        tasks = [partial(answer, case) for case in cases]
        found = run_parallel(tasks, self._config.concurrency, on_error=self.calls.stop_on)
        trial = RetrievalTrial(settings, dict(zip((case.case_id for case in cases), found, strict=True)))
        if not trial.answered:
            self._probe()  # more context than a model can read fails too, and is no reason to end
        return trial


def retrieval_results(
    config: OptimizeConfig,
    subject: MemoryOptimizationTarget,
    tuner: RetrievalTuner,
    choice: RetrievalChoice | None,
    stopped: Sequence[str],
) -> Json:
    """Describe a search for retrieval settings as JSON; ``choice`` is None if a limit ended it before."""

    def trial_json(trial: RetrievalTrial) -> Json:
        return {"settings": trial.settings, "score": score(trial), "scores": trial.scores}

    def score(trial: RetrievalTrial) -> float | None:
        return trial.score if trial.answered else None

    compared: Json = {}
    if choice is not None:
        compared = {
            "baseline": trial_json(choice.baseline),
            "best": trial_json(choice.best),
            "comparison": None if choice.comparison is None else asdict(choice.comparison),
        }
    return {
        "target": config.target.value,
        "settings": config.model_dump(mode="json", exclude={*MACHINE_SETTINGS, "dataset", "program"}),
        "dataset": subject.dataset,
        **provenance(),
        "calls": {"used": tuner.calls.used, **asdict(tuner.calls.usage)},
        "stopped": list(stopped),
        "retrieval": {
            "trials": [{"settings": trial.settings, "score": score(trial)} for trial in tuner.trials],
            **compared,
            "winner": choice.winner.settings if choice is not None else tuner.present,
        },
    }
