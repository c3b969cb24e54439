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
    from memory_program.client import AsyncMemoryClient, MemoryClient, remembering
    from memory_program.configs.evaluate_config import EvaluateConfig
    from memory_program.configs.optimize_config import OptimizeConfig
    from memory_program.configs.train_config import TrainConfig
    from memory_program.evaluation.evaluation_run import evaluate
    from memory_program.models.factory import language_model
    from memory_program.optimization.optimization_run import optimize
    from memory_program.rl import rewards
    from memory_program.rl.training_run import train

__version__ = "0.2.0"

__all__ = [
    "AsyncMemoryClient",
    "BankStore",
    "DenseIndex",
    "EvaluateConfig",
    "MemoryClient",
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
    "remembering",
    "rewards",
    "train",
]

_HOMES = {
    **{"BankStore": "bank.store", "DenseIndex": "bank.dense", "MemorySpace": "bank.space"},
    **{"MemoryProgram": "agents.program", "MemorySystem": "agents.program"},
    **{"AsyncMemoryClient": "client", "MemoryClient": "client", "remembering": "client"},
    **{"EvaluateConfig": "configs.evaluate_config", "evaluate": "evaluation.evaluation_run"},
    **{"OptimizeConfig": "configs.optimize_config", "optimize": "optimization.optimization_run"},
    **{"TrainConfig": "configs.train_config", "train": "rl.training_run"},
    **{"language_model": "models.factory", "rewards": "rl.rewards"},
}
"""The module of each public name, below this package; ``rewards`` is one itself.

``Session`` and ``Turn`` are of ``locomo.types``."""


def __getattr__(name: str) -> object:
    """Import a public name when it is first used (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with name_missing_extra("train" if name == "train" else None):
        home = f"memory_program.{_HOMES[name]}" if name in _HOMES else "locomo.types"
        value = import_module(home) if home.endswith(f".{name}") else getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})
