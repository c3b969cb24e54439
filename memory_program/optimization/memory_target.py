"""The memory program, to be improved on conversations."""

from contextlib import ExitStack

from memory_program import __version__
from memory_program.agents.program import MemoryProgram
from memory_program.agents.systems import make_system
from memory_program.bank.store import BankStore
from memory_program.configs.evaluate_config import SystemName
from memory_program.configs.optimize_config import OptimizeConfig, Target
from memory_program.core.json_files import Json
from memory_program.evaluation.stages.cost_estimate import StageEstimate
from memory_program.evaluation.stages.system_runner import load_program
from memory_program.models.model_names import model_fingerprint
from memory_program.optimization.budget_estimate import estimate_run
from memory_program.optimization.call_journal import ReplyCache
from memory_program.optimization.candidate_evaluator import CandidateEvaluator, PromptCandidate
from memory_program.optimization.dev_data import CaseBuilder, load_optimization_splits
from memory_program.optimization.dev_examples import CaseSplits
from memory_program.optimization.students import ReaderStudent, Student, WriterStudent
from memory_program.rl.rewards import AnswerMetric


class MemoryOptimizationTarget:
    """Reader and writer of the memory program, on conversations."""

    def __init__(self, config: OptimizeConfig) -> None:
        """Read the program and the conversations."""
        program = make_system(SystemName.MEMORY.value, config.system)
        assert isinstance(program, MemoryProgram)
        if config.program is not None:
            load_program(program, config.program)
        self.program = program
        self._config, self._material = config, load_optimization_splits(config)
        self._roll_in: CaseBuilder | None = None

    @property
    def summary(self) -> str:
        """How many conversations there are by split."""
        material = self._material
        splits = f"{len(material.train)} conversations to learn from, {len(material.val)} to choose on"
        return f"{material.dataset.name}: {splits}, {len(material.test_ids)} left untouched"

    @property
    def dataset(self) -> Json:
        """The dataset and its conversations by split."""
        material = self._material
        return {
            "name": material.dataset.name,
            "sha256": material.dataset.sha256,
            "is_modified": material.dataset.is_modified,
            "train": [conversation.conversation_id for conversation in material.train],
            "val": [conversation.conversation_id for conversation in material.val],
            "test": list(material.test_ids),
        }

    @property
    def lost_sessions(self) -> int:
        """Sessions of the last roll-in in which a call failed."""
        return self._opened.lost_sessions

    @property
    def _opened(self) -> CaseBuilder:
        assert self._roll_in is not None, "begin comes first"
        return self._roll_in

    def begin(self, calls: ReplyCache, stack: ExitStack) -> None:
        """Open the database of memories."""
        path = self._config.output_dir / "banks.sqlite"
        store = stack.enter_context(BankStore(f"sqlite:///{path.as_posix()}"))
        self._roll_in = CaseBuilder(self._config, self._material, store, calls)

    def estimates(self) -> list[StageEstimate]:
        """Estimate remembering, answering, judging and proposing."""
        return estimate_run(self._config, self._material, self.program)

    def cases(self, target: Target) -> CaseSplits:
        """Remember what is not remembered yet, and draw questions or sessions."""
        return self._opened.cases(self.program, target)

    def student(self, target: Target, score: AnswerMetric, bench: CandidateEvaluator) -> Student:
        """Make a student of the reader or of the writer."""
        if target is Target.READER:
            return ReaderStudent(bench, self.program.reader, score)
        return WriterStudent(bench, self.program.writer, self.program.reader, score)

    def signature(self, target: Target, candidate: PromptCandidate, n: int) -> str:
        """Write metric, judge, data, version, model, prompts and settings."""
        config = self._config
        parts = {
            "cat": "1-5",
            "n": n,
            "judge": f"{model_fingerprint(config.judge)}/{config.grading.rubric}"
            if config.judge is not None
            else "none",
            "data": self._material.dataset.version,
            "v": __version__,
            "split": "val",
            **({} if config.max_sessions is None else {"max_sessions": config.max_sessions}),
            "examples": "questions" if target is Target.READER else "sessions",
            **({} if target is Target.READER else {"episode_questions": config.episode_questions}),
            "model": model_fingerprint(config.model),
            "temperature": f"{config.temperature:g}",
            "prompts": candidate.name[:8],
            "seed": config.seed,
            **config.system.for_records(),
        }
        metric = {"f1": "locomo_f1", "judge": "judge", "mix": "mean(locomo_f1,judge)"}[
            config.grading.answer_metric
        ]
        return "|".join([metric, *(f"{name}:{value}" for name, value in parts.items())])

    def errors(self, bench: CandidateEvaluator, candidate: PromptCandidate) -> Json:
        """Say nothing more."""
        return {}
