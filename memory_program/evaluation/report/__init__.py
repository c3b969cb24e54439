"""Reports of an evaluation: tables, plots, HTML page, MLflow."""

from importlib.util import find_spec

PLOTS_LEFT_OUT = "plots are left out: they need matplotlib (pip install 'memory-program[local]')"


def has_matplotlib() -> bool:
    """Return True if plots can be drawn; a base install has no matplotlib."""
    return find_spec("matplotlib") is not None
