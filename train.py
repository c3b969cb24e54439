"""Train models of the program. Each mode has flags of its own: python train.py --mode NAME --help.

- train: train a writer by what its memories are worth, and evaluate it (the default)
- evaluate: evaluate again what was trained
- trajectories: write down what an expert does, for sft
- synthesize: have a model write questions about conversations, to train by
- sft: teach a writer the replies of an expert
- export: write trajectories, or a trained model, as other tools read them
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from memory_program.configs.arbor_config import train_config_type
from memory_program.configs.sft_config import (
    ExportConfig,
    FineTuneConfig,
    SynthesizeConfig,
    TrajectoriesConfig,
)
from memory_program.configs.train_config import ReevaluateConfig, TrainConfig
from memory_program.core.command_line import parse_flags, parse_mode, run_script
from memory_program.core.settings import Settings

MODES: dict[str, tuple[type[Settings], str]] = {
    "train": (TrainConfig, "memory_program.rl.training_run:train"),
    "evaluate": (ReevaluateConfig, "memory_program.rl.training_run:reevaluate"),
    "trajectories": (TrajectoriesConfig, "memory_program.sft.sft_commands:collect_trajectories"),
    "synthesize": (SynthesizeConfig, "memory_program.sft.sft_commands:synthesize_questions"),
    "sft": (FineTuneConfig, "memory_program.sft.sft_commands:fine_tune_writer"),
    "export": (ExportConfig, "memory_program.sft.sft_commands:export_to_format"),
}
"""For each mode its flags, and the function that takes them; imported late, since it needs torch."""


def main() -> None:
    """Read the flags of the mode, and do what it is for."""
    mode = parse_mode(MODES, "train")
    config_type, place = MODES[mode]
    config_type = train_config_type() if config_type is TrainConfig else config_type
    config = parse_flags(config_type, about=__doc__ or "", prog=f"train.py --mode {mode}")
    module, _, name = place.partition(":")
    run: Callable[[Settings], Any] = getattr(import_module(module), name)  # Any: each mode its own
    run(config)


if __name__ == "__main__":
    sys.exit(run_script(main))
