"""Long-term conversational memory as a DSPy program.

The names below are imported when they are first used, so that a command's help does not wait for DSPy.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from memory_program.core.extras import name_missing_extra

if TYPE_CHECKING:
    from locomo.types import Session, Turn
    from memory_program.agents.program import MemoryProgram, MemorySystem
    from memory_program.bank.dense import DenseIndex
    from memory_program.bank.space import MemorySpace
    from memory_program.bank.store import BankStore
    from memory_program.configs.evaluate_config import EvaluateConfig
    from memory_program.configs.optimize_config import OptimizeConfig
    from memory_program.configs.train_config import TrainConfig
    from memory_program.evaluation.evaluation_run import evaluate
    from memory_program.models.factory import language_model
    from memory_program.optimization.optimization_run import optimize
    from memory_program.rl.training_run import train

__version__ = "0.2.0"

__all__ = [
    "BankStore",
    "DenseIndex",
    "EvaluateConfig",
    "MemoryProgram",
    "MemorySpace",
    "MemorySystem",
    "OptimizeConfig",
    "Session",
    "TrainConfig",
    "Turn",
    "__version__",
    "evaluate",
    "language_model",
    "optimize",
    "train",
]

_HOMES = {
    "BankStore": "memory_program.bank.store",
    "DenseIndex": "memory_program.bank.dense",
    "EvaluateConfig": "memory_program.configs.evaluate_config",
    "MemoryProgram": "memory_program.agents.program",
    "MemorySpace": "memory_program.bank.space",
    "MemorySystem": "memory_program.agents.program",
    "OptimizeConfig": "memory_program.configs.optimize_config",
    "Session": "locomo.types",
    "TrainConfig": "memory_program.configs.train_config",
    "Turn": "locomo.types",
    "evaluate": "memory_program.evaluation.evaluation_run",
    "language_model": "memory_program.models.factory",
    "optimize": "memory_program.optimization.optimization_run",
    "train": "memory_program.rl.training_run",
}
"""The module that defines each public name."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with name_missing_extra("train" if name == "train" else None):
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
