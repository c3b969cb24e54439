"""Runs a script with the machine's clock set back: ``python -m tests.clock_set_back DAYS SCRIPT ...``."""

import runpy
import sys
import time

_SECONDS_A_DAY = 86_400


def main() -> None:
    days, script = int(sys.argv[1]), sys.argv[2]
    real_s, real_ns = time.time, time.time_ns
    time.time = lambda: real_s() - days * _SECONDS_A_DAY
    time.time_ns = lambda: real_ns() - days * _SECONDS_A_DAY * 10**9
    sys.argv = sys.argv[2:]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
