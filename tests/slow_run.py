"""A run that takes long enough to be killed.

``python -m tests.slow_run SYSTEM DELAY_S SETTINGS [JOURNAL LINES MORE_S]``. With a journal it kills itself as
soon as that has so many lines and a moment more has passed: another process, watching, would be late on a
busy machine.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from memory_program.config import EvaluateConfig
from memory_program.evaluation.run import evaluate
from tests.evaluation_samples import NoteTaking, Quoting, maker

SYSTEMS = {"memory": NoteTaking, "rag": Quoting}


def main() -> None:
    system, delay_s, settings, *death = sys.argv[1:]
    if death:
        threading.Thread(target=_die, args=death, daemon=True).start()
    config = EvaluateConfig(systems=system, **json.loads(settings))
    evaluate(config, make=maker(SYSTEMS[system](float(delay_s))), models=lambda name, temperature: None)


def _die(journal: str, lines: str, more_s: str) -> None:
    path = Path(journal)
    while not path.exists() or path.read_bytes().count(b"\n") < int(lines):
        time.sleep(0.001)
    time.sleep(float(more_s))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()
