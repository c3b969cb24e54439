"""DSPy's optimisers, each set up for this program; their proposals are compared elsewhere.

All of them improve a student within a context that names the model, and are given whole cases as examples.
Labelled demos are off everywhere: an example here lacks the outputs of the predictors.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt.gepa import InstructionProposer
from dspy.teleprompt.simba_utils import append_a_rule

from memory_program.configs.optimize_config import OptimizeConfig, Optimizer, Target
from memory_program.optimization.candidate_evaluator import CandidateEvaluator
from memory_program.optimization.candidate_selection import MAX_FINALISTS
from memory_program.optimization.prompt_text import to_json_value
from memory_program.optimization.proposal_adapter import ProposalAdapter

MIN_DEMO_SCORE = 0.6
"""The least score of an attempt that is shown as a demo."""

MAX_DEMO_FIELD_CHARS = 8_000
"""Longer input fields of a demo are cut. A session has two to six thousand characters."""

AUTO_STEPS: Mapping[Optimizer, Mapping[str, int]] = {
    Optimizer.SIMBA: {"light": 3, "medium": 6, "heavy": 12},
    Optimizer.BOOTSTRAP: {"light": 4, "medium": 8, "heavy": 16},
    Optimizer.MIPRO: {"light": 10, "medium": 20, "heavy": 40},
    Optimizer.GEPA: {"light": 6, "medium": 12, "heavy": 24},
}
"""Number of steps, trials, new instructions or sets of demos for each value of ``--auto``."""

MIPRO_FULL_EVAL_STEPS = 5
"""MIPROv2 tries its best program on all validation examples after this number of trials."""

REFLECTION_BATCH = 3
"""Number of examples that GEPA reflects on at once."""


@dataclass(frozen=True, slots=True)
class OptimizerInputs:
    """The settings, student, cases and model for an optimiser."""

    config: OptimizeConfig
    student: dspy.Module
    evaluator: CandidateEvaluator
    prompt_lm: dspy.LM

    @property
    def train(self) -> list[dspy.Example]:
        """The examples that candidates are proposed from."""
        return [case.example for case in self.evaluator.train]

    @property
    def val(self) -> list[dspy.Example]:
        """The examples that candidates are chosen on."""
        return [case.example for case in self.evaluator.val]


def num_optimizer_steps(config: OptimizeConfig) -> int:
    """Return the number of steps, from ``--trials`` or ``--auto``."""
    return config.trials or AUTO_STEPS[config.optimizer][config.auto]


def num_finalists(config: OptimizeConfig) -> int:
    """Return the most candidates that are tried on all validation cases after the search."""
    is_ranked = config.optimizer is not Optimizer.BOOTSTRAP
    return MAX_FINALISTS if is_ranked else num_optimizer_steps(config)


def expected_attempts(config: OptimizeConfig, train: int, val: int) -> int:
    """Estimate the number of attempts of an optimiser, given the numbers of examples."""
    steps, candidates = num_optimizer_steps(config), config.num_candidates
    bootstrapped = min(train, 2 * config.max_demos)  # until there are enough demos
    match config.optimizer:
        case Optimizer.SIMBA:
            return steps * min(config.batch_size, train) * (2 * candidates + 1) + (candidates + 1) * train
        case Optimizer.MIPRO:
            full = val * (2 + steps // MIPRO_FULL_EVAL_STEPS)
            return candidates * bootstrapped + steps * min(config.batch_size, val) + full
        case Optimizer.GEPA:
            return gepa_metric_calls(config, val)
        case Optimizer.BOOTSTRAP:
            return steps * bootstrapped


def expected_proposals(config: OptimizeConfig, predictors: int) -> int:
    """Estimate the number of calls of an optimiser to the model that writes instructions."""
    if not config.proposes_instructions:
        return 0
    match config.optimizer:
        case Optimizer.SIMBA:
            return num_optimizer_steps(config) * (config.num_candidates + 1) // 2  # the other half are demos
        case Optimizer.MIPRO:
            return 12 + predictors * (2 * config.num_candidates + 1)  # data, program, instructions
        case Optimizer.GEPA:  # of a judge, the prompts of all kinds of questions in a batch
            is_judge = config.target is Target.JUDGE
            return num_optimizer_steps(config) * (min(predictors, REFLECTION_BATCH) if is_judge else 1)
        case Optimizer.BOOTSTRAP:
            return 0


def propose_programs(inputs: OptimizerInputs) -> list[dspy.Module]:
    """Run the optimiser of a config, and list the programs that it proposes.

    The best comes first, except of bootstrap, which compares none of its sets of demos.
    """
    return _OPTIMIZERS[inputs.config.optimizer](inputs)


def _simba(inputs: OptimizerInputs) -> list[dspy.Module]:
    """Run SIMBA: rules and demos from examples whose samples differ in score; it uses no validation set."""
    config = inputs.config
    metric: Any = inputs.evaluator.metric  # Any: DSPy declares predictions as dicts here
    optimizer = dspy.SIMBA(
        metric=metric,
        bsize=min(config.batch_size, len(inputs.train)),
        num_candidates=config.num_candidates,
        max_steps=num_optimizer_steps(config),
        max_demos=config.max_demos,
        prompt_model=inputs.prompt_lm,
        demo_input_field_maxlen=MAX_DEMO_FIELD_CHARS,
        num_threads=config.concurrency,
    )
    demos_first = optimizer.strategies[:-1]  # the last strategy appends a rule
    optimizer.strategies = [*demos_first, append_rule] if config.proposes_instructions else demos_first
    best: Any = optimizer.compile(inputs.student, trainset=inputs.train, seed=config.seed)
    return [best, *(candidate["program"] for candidate in best.candidate_programs)]


def append_rule(bucket: list[dict[str, Any]], system: dspy.Module, **stage: object) -> bool:
    """Append a rule to a program as DSPy's ``append_a_rule`` does, with tool calls that can be read.

    Attempts (``bucket``) are shown as JSON to the model that writes the rule, and SIMBA masks what is none.
    """
    readable = [
        {
            **attempt,
            "trace": [(part, given, to_json_value(dict(made))) for part, given, made in attempt["trace"]],
        }
        for attempt in bucket
    ]
    return append_a_rule(readable, system, **stage)


def _mipro(inputs: OptimizerInputs) -> list[dspy.Module]:
    """Run MIPROv2: instructions written from the data and sets of demos, joined by Bayesian optimisation."""
    config = inputs.config
    minibatch = min(config.batch_size, len(inputs.val))
    optimizer = dspy.MIPROv2(
        metric=inputs.evaluator.metric,
        prompt_model=inputs.prompt_lm,
        task_model=dspy.settings.lm,
        max_bootstrapped_demos=config.max_demos,
        max_labeled_demos=0,
        auto=None,
        num_candidates=config.num_candidates,
        num_threads=config.concurrency,
        max_errors=len(inputs.train) + len(inputs.val),
        seed=config.seed % (2**32 - 1) + 1,  # DSPy takes 0 for no seed, and NumPy none from 2**32 on
        metric_threshold=MIN_DEMO_SCORE,
    )
    adapter = ProposalAdapter()
    with dspy.context(adapter=adapter):  # the program and its judge have adapters of their own
        best: Any = optimizer.compile(
            inputs.student,
            trainset=inputs.train,
            valset=inputs.val,
            num_trials=num_optimizer_steps(config),
            minibatch=minibatch < len(inputs.val),
            minibatch_size=minibatch,
            minibatch_full_eval_steps=MIPRO_FULL_EVAL_STEPS,
        )
    adapter.require_success()
    tried = [*best.candidate_programs, *best.mb_candidate_programs]  # on all examples, and on batches only
    return [best, *(candidate["program"] for candidate in tried)]


class _LimitedProposer:
    """DSPy's proposer of instructions, which tells GEPA to stop after a number of proposals.

    GEPA's own budget is in attempts. A rejected proposal is not validated, so the budget would buy several
    others in its place. GEPA's limit of proposals counts its iterations, also those that propose nothing.
    """

    def __init__(self, most: int) -> None:
        # DSPy's default adapter here is JSON mode, which some servers lack
        self._propose: Callable[..., dict[str, str]] = InstructionProposer(adapter=dspy.ChatAdapter())
        self._left = most

    def __call__(
        self,
        candidate: dict[str, str],
        reflective_dataset: Mapping[str, Sequence[Mapping[str, Any]]],  # Any: as GEPA gives them
        components_to_update: list[str],
    ) -> dict[str, str]:
        self._left -= 1
        return self._propose(candidate, reflective_dataset, components_to_update)

    def is_done(self, gepa_state: object) -> bool:
        """Tell GEPA to stop."""
        return self._left <= 0


def _gepa(inputs: OptimizerInputs) -> list[dspy.Module]:
    """Run GEPA: instructions by reflection on failures, kept where they win on a validation case."""
    config = inputs.config
    proposer = _LimitedProposer(num_optimizer_steps(config))
    optimizer = dspy.GEPA(
        metric=inputs.evaluator.metric_with_feedback,
        max_metric_calls=gepa_metric_calls(config, len(inputs.val)),
        reflection_minibatch_size=REFLECTION_BATCH,
        reflection_lm=inputs.prompt_lm,
        instruction_proposer=proposer,
        gepa_kwargs={"stop_callbacks": proposer.is_done},
        # a judge has a prompt for each kind of question, and a batch has not every kind
        component_selector="all" if config.target is Target.JUDGE else "round_robin",
        num_threads=config.concurrency,
        warn_on_score_mismatch=False,
        seed=config.seed,
    )
    return [optimizer.compile(inputs.student, trainset=inputs.train, valset=inputs.val)]


def gepa_metric_calls(config: OptimizeConfig, val: int) -> int:
    """Return GEPA's budget: validation of the baseline, and per step two minibatches and a validation."""
    return val + num_optimizer_steps(config) * (2 * REFLECTION_BATCH + val)


def _bootstrap(inputs: OptimizerInputs) -> list[dspy.Module]:
    """Run BootstrapFewShot: the program's good attempts as demos, a set for each order of the examples."""
    config, proposals = inputs.config, list[dspy.Module]()
    for trial in range(num_optimizer_steps(config)):
        train = inputs.train
        if trial:
            random.Random(config.seed + trial).shuffle(train)
        optimizer = dspy.BootstrapFewShot(
            metric=inputs.evaluator.metric,
            metric_threshold=MIN_DEMO_SCORE,
            max_bootstrapped_demos=config.max_demos,
            max_labeled_demos=0,
            max_errors=len(train) + 1,
        )
        proposals.append(optimizer.compile(inputs.student, trainset=train))
    return proposals


_OPTIMIZERS: Mapping[Optimizer, Callable[[OptimizerInputs], list[dspy.Module]]] = {
    Optimizer.SIMBA: _simba,
    Optimizer.MIPRO: _mipro,
    Optimizer.GEPA: _gepa,
    Optimizer.BOOTSTRAP: _bootstrap,
}
