"""A run that takes long enough to be killed.

``python -m tests.slow_run SYSTEM DELAY_S SETTINGS [JOURNAL LINES MORE_S]``. With a journal it kills itself as
soon as that has that number of lines and a moment more has passed: another process, watching, would be late
on a busy machine. ``oracle`` is the program itself with the oracle as its model, whose every call takes the
delay.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
from dspy.lm15 import Request, Response

from memory_program.configs.evaluate_config import EvaluateConfig
from memory_program.evaluation.datasets import load_worlds
from memory_program.evaluation.evaluation_run import evaluate
from memory_program.worlds.oracle import Oracle, OracleEngine, engine_as_lm
from tests.evaluation_samples import NoteTaking, Quoting, maker

SYSTEMS = {"memory": NoteTaking, "rag": Quoting}


class SlowOracle(OracleEngine):
    """The oracle, which takes its time."""

    def __init__(self, oracle: Oracle, delay_s: float) -> None:
        super().__init__(oracle)
        self._delay_s = delay_s

    def complete(self, request: Request) -> Response:
        time.sleep(self._delay_s)
        return super().complete(request)


def main() -> None:
    system, delay_s, settings, *death = sys.argv[1:]
    if death:
        threading.Thread(target=_die, args=death, daemon=True).start()
    run_slowly(system, float(delay_s), json.loads(settings))


def run_slowly(system: str, delay_s: float, settings: Mapping[str, Any]) -> None:
    """Run an evaluation to its end."""
    if system == "oracle":
        config = EvaluateConfig(systems="memory", **settings)
        worlds = load_worlds(config.source, config.seed)
        lm: dspy.LM = engine_as_lm(SlowOracle(Oracle(worlds), delay_s))
        evaluate(config, models=lambda name, temperature: lm)
        return
    config = EvaluateConfig(systems=system, **settings)
    evaluate(config, system_factory=maker(SYSTEMS[system](delay_s)), models=lambda name, temperature: None)


def _die(journal: str, lines: str, more_s: str) -> None:
    path = Path(journal)
    while not path.exists() or path.read_bytes().count(b"\n") < int(lines):
        time.sleep(0.001)
    time.sleep(float(more_s))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
