"""An optimisation that ends itself by a signal.

``python -m tests.slow_optimize API_BASE SETTINGS SIGNAL JOURNAL LINES`` sends itself the signal as soon as
the journal has LINES lines: a watching process would be late on a busy machine.
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from memory_program.configs.optimize_config import OptimizeConfig
from memory_program.core.command_line import run_script
from memory_program.optimization.optimization_run import optimize
from tests.optimization_samples import impatient


def main() -> None:
    api_base, settings, name, journal, lines = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background begin with it ignored
    death = (Path(journal), int(lines), signal.Signals[name])
    threading.Thread(target=_send, args=death, daemon=True).start()
    optimize(OptimizeConfig(**json.loads(settings)), models=impatient(api_base))


def _send(journal: Path, lines: int, name: signal.Signals) -> None:
    while not journal.exists() or journal.read_bytes().count(b"\n") < lines:
        time.sleep(0.001)
    os.kill(os.getpid(), name)


if __name__ == "__main__":
    sys.exit(run_script(main))
