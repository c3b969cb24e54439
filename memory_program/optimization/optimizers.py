"""DSPy's optimisers, each set up for this program; what they propose is compared elsewhere.

All of them work on a student within a context that names the model, and are given whole cases as examples.
Labelled demos are off everywhere: an example here lacks what a predictor is to
reply.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer
from dspy.teleprompt.simba_utils import append_a_demo

from memory_program.configs.optimize_config import OptimizeConfig, Optimizer, Target
from memory_program.optimization.candidate_evaluator import CandidateEvaluator

MIN_DEMO_SCORE = 0.6
"""The score from which an attempt is good enough to be shown as a demo."""

MAX_DEMO_FIELD_CHARS = 8_000
"""The longest input field of a demo; what is longer is cut. A session is two to six thousand."""

AUTO_STEPS: Mapping[Optimizer, Mapping[str, int]] = {
    Optimizer.SIMBA: {"light": 3, "medium": 6, "heavy": 12},
    Optimizer.BOOTSTRAP: {"light": 4, "medium": 8, "heavy": 16},
    Optimizer.MIPRO: {"light": 10, "medium": 20, "heavy": 40},
    Optimizer.GEPA: {"light": 6, "medium": 12, "heavy": 24},
}
"""How many steps, sets, trials or new instructions ``--auto`` means."""

MIPRO_FULL_EVAL_STEPS = 5
"""After how many trials MIPROv2 tries its best on all of the validation examples."""

REFLECTION_BATCH = 3
"""How many examples GEPA reflects on at once."""


@dataclass(frozen=True, slots=True)
class OptimizerInputs:
    """What an optimiser works with."""

    config: OptimizeConfig
    student: dspy.Module
    bench: CandidateEvaluator
    prompt_lm: dspy.LM

    @property
    def train(self) -> list[dspy.Example]:
        """The examples that candidates are proposed from."""
        return [case.example for case in self.bench.train]

    @property
    def val(self) -> list[dspy.Example]:
        """The examples that candidates are chosen on."""
        return [case.example for case in self.bench.val]


def num_optimizer_steps(config: OptimizeConfig) -> int:
    """Give the number of steps, by ``--trials`` or ``--auto``."""
    return config.trials or AUTO_STEPS[config.optimizer][config.auto]


def expected_attempts(config: OptimizeConfig, train: int, val: int) -> int:
    """Estimate how often an optimiser tries the student, given the numbers of examples."""
    steps, candidates = num_optimizer_steps(config), config.num_candidates
    bootstrapped = min(train, 2 * config.max_demos)  # until there are enough good ones
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
    """Estimate how many calls an optimiser makes to the model that writes instructions."""
    if not config.proposes_instructions:
        return 0
    match config.optimizer:
        case Optimizer.SIMBA:
            return num_optimizer_steps(config) * (config.num_candidates + 1) // 2  # the other half are demos
        case Optimizer.MIPRO:
            return 12 + predictors * (2 * config.num_candidates + 1)  # data, program, instructions
        case Optimizer.GEPA:
            return num_optimizer_steps(config)
        case Optimizer.BOOTSTRAP:
            return 0


def propose_programs(search: OptimizerInputs) -> list[dspy.Module]:
    """Run the optimiser of a config, and list the programs that it thinks best, the very best first."""
    return _OPTIMIZERS[search.config.optimizer](search)


def _simba(search: OptimizerInputs) -> list[dspy.Module]:
    """SIMBA: rules and demos from what varies between samples (no validation set of its own).

    Where no model can write rules, only demos are appended.
    """
    config = search.config
    metric: Any = search.bench.metric  # Any: DSPy declares predictions as dicts here
    optimizer = dspy.SIMBA(
        metric=metric,
        bsize=min(config.batch_size, len(search.train)),
        num_candidates=config.num_candidates,
        max_steps=num_optimizer_steps(config),
        max_demos=config.max_demos,
        prompt_model=search.prompt_lm,
        demo_input_field_maxlen=MAX_DEMO_FIELD_CHARS,
        num_threads=config.concurrency,
    )
    if not config.proposes_instructions:
        optimizer.strategies = [append_a_demo(MAX_DEMO_FIELD_CHARS)]
    best: Any = optimizer.compile(search.student, trainset=search.train, seed=config.seed)
    return [best, *(candidate["program"] for candidate in best.candidate_programs)]


def _mipro(search: OptimizerInputs) -> list[dspy.Module]:
    """MIPROv2: instructions proposed from the data, and sets of demos, combined by Bayesian optimisation."""
    config = search.config
    minibatch = min(config.batch_size, len(search.val))
    optimizer = dspy.MIPROv2(
        metric=search.bench.metric,
        prompt_model=search.prompt_lm,
        task_model=dspy.settings.lm,
        max_bootstrapped_demos=config.max_demos,
        max_labeled_demos=0,
        auto=None,
        num_candidates=config.num_candidates,
        num_threads=config.concurrency,
        max_errors=len(search.train) + len(search.val),
        seed=config.seed + 1,  # 0 would be taken for none
        metric_threshold=MIN_DEMO_SCORE,
    )
    best: Any = optimizer.compile(
        search.student,
        trainset=search.train,
        valset=search.val,
        num_trials=num_optimizer_steps(config),
        minibatch=minibatch < len(search.val),
        minibatch_size=minibatch,
        minibatch_full_eval_steps=MIPRO_FULL_EVAL_STEPS,
    )
    tried = [*best.candidate_programs, *best.mb_candidate_programs]  # wholly, and on batches only
    return [best, *(candidate["program"] for candidate in tried)]


def _gepa(search: OptimizerInputs) -> list[dspy.Module]:
    """GEPA: instructions by reflection on what went wrong, kept where they win on a validation case."""
    config = search.config
    optimizer = dspy.GEPA(
        metric=search.bench.metric_with_feedback,
        max_metric_calls=gepa_metric_calls(config, len(search.val)),
        reflection_minibatch_size=REFLECTION_BATCH,
        reflection_lm=search.prompt_lm,
        # not in JSON mode, DSPy's default here: not every server has it
        instruction_proposer=InstructionProposer(adapter=dspy.ChatAdapter()),
        # a judge has a prompt for each kind of question, and a batch has not every kind
        component_selector="all" if config.target is Target.JUDGE else "round_robin",
        num_threads=config.concurrency,
        warn_on_score_mismatch=False,
        seed=config.seed,
    )
    return [optimizer.compile(search.student, trainset=search.train, valset=search.val)]


def gepa_metric_calls(config: OptimizeConfig, val: int) -> int:
    """Give GEPA's budget: the baseline on validation; per step two minibatches and, if better, validation."""
    return val + num_optimizer_steps(config) * (2 * REFLECTION_BATCH + val)


def _bootstrap(search: OptimizerInputs) -> list[dspy.Module]:
    """BootstrapFewShot: the program's own good attempts as demos, a set for each order of the examples."""
    config, proposals = search.config, list[dspy.Module]()
    for trial in range(num_optimizer_steps(config)):
        train = search.train
        if trial:
            random.Random(config.seed + trial).shuffle(train)
        optimizer = dspy.BootstrapFewShot(
            metric=search.bench.metric,
            metric_threshold=MIN_DEMO_SCORE,
            max_bootstrapped_demos=config.max_demos,
            max_labeled_demos=0,
            max_errors=len(train) + 1,
        )
        proposals.append(optimizer.compile(search.student, trainset=train))
    return proposals


_OPTIMIZERS: Mapping[Optimizer, Callable[[OptimizerInputs], list[dspy.Module]]] = {
    Optimizer.SIMBA: _simba,
    Optimizer.MIPRO: _mipro,
    Optimizer.GEPA: _gepa,
    Optimizer.BOOTSTRAP: _bootstrap,
}
