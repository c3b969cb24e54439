"""A run that takes long enough to be killed: ``python -m tests.slow_run SYSTEM DELAY_S SETTINGS_JSON``."""

import json
import sys

from memory_program.config import EvaluateConfig
from memory_program.evaluation.run import evaluate
from tests.evaluation_samples import NoteTaking, Quoting, maker

SYSTEMS = {"memory": NoteTaking, "rag": Quoting}


def main() -> None:
    system, delay_s, settings = sys.argv[1:]
    config = EvaluateConfig(systems=system, **json.loads(settings))
    evaluate(config, make=maker(SYSTEMS[system](float(delay_s))), models=lambda name, temperature: None)


if __name__ == "__main__":
    main()
