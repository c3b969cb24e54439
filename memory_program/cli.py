"""The command ``memory-program``, and the functions behind ``evaluate.py``, ``optimize.py`` and ``train.py``.

A subcommand imports what it needs when it runs, so that help answers at once.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memory_program.core.extras import name_missing_extra
from memory_program.core.redaction import redact_text

if TYPE_CHECKING:
    from memory_program.core.settings import Settings

_COMMANDS = {
    "evaluate": (
        "memory_program.cli:run_evaluate",
        "score memory systems on a benchmark or on your own data",
    ),
    "score": ("memory_program.cli:run_score", "score answers or rankings of any other system, from JSONL"),
    "optimize": ("memory_program.cli:run_optimize", "optimise prompts, or the settings of retrieval"),
    "train": ("memory_program.cli:run_train", "train writer and reader: RL, SFT, their data, exports"),
    "bank": (
        "memory_program.bank.__main__:main",
        "inspect, search, undo, forget, export and import memories",
    ),
    "rollouts": (
        "memory_program.rl.rollout_files:main",
        "show what a training sampled: replies, rewards, answers",
    ),
    "world": ("memory_program.worlds.__main__:main", "generate synthetic conversations from known facts"),
    "forget": ("memory_program.forget.__main__:main", "delete a conversation from runs, reports and MLflow"),
    "arbor": ("memory_program.rl.backends.arbor.__main__:main", "start and stop an Arbor training server"),
    "serve": (
        "memory_program.cli:run_serve",
        "serve memory over REST, MCP and an OpenAI-compatible proxy",
    ),
    "token": (
        "memory_program.serving.service.token_command:main",
        "create, list and revoke the tokens of a memory server",
    ),
    "reward-server": (
        "memory_program.serving.reward_server:main",
        "serve rewards over HTTP to other trainers",
    ),
    "split-data": ("locomo.split_data:main", "check or write LoCoMo's reference splits"),
}
"""For each subcommand its function, and a phrase for the help."""

TRAIN_MODES = {
    "train": ("rl.training_run:train", "train writer or reader by reward, then evaluate (the default)"),
    "evaluate": ("rl.training_run:reevaluate", "evaluate a trained model again"),
    "trajectories": ("sft.sft_commands:collect_trajectories", "record the tool calls of an expert, for sft"),
    "synthesize": ("sft.sft_commands:synthesize_questions", "let a model write training questions"),
    "sft": ("sft.sft_commands:fine_tune_parts", "fine-tune a writer or a reader on an expert's trajectories"),
    "export": ("sft.sft_commands:export_to_format", "write trajectories or a model for another tool"),
}
"""For each mode of ``train.py`` the function that takes its config, and a phrase for the help."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the subcommand that the command line names, and return the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if not given or given[0] in ("-h", "--help"):
        from memory_program import __version__

        lines = [f"  {name:14} {phrase}" for name, (_, phrase) in _COMMANDS.items()]
        print(f"memory-program {__version__}: long-term conversational memory as a DSPy program\n")
        print("usage: memory-program COMMAND [OPTIONS]\n\ncommands:", *lines, sep="\n")
        print("\nmemory-program COMMAND --help lists the options of a command.")
        return 0
    if given[0] not in _COMMANDS:
        shown = redact_text(given[0])
        print(f"error: unknown command {shown!r}: choose from {', '.join(_COMMANDS)}", file=sys.stderr)
        return 2
    command: list[Callable[[Sequence[str], str], int]] = []
    from memory_program.core.command_line import run_script

    status = run_script(lambda: command.append(_load(_COMMANDS[given[0]][0])))
    return status or command[0](given[1:], f"memory-program {given[0]}")


def run_evaluate(arguments: Sequence[str] | None = None, prog: str = "evaluate.py") -> int:
    """Evaluate memory systems: run the stages that the flags ask for, and print the results."""
    from memory_program.configs.evaluate_config import EvaluateConfig
    from memory_program.core.command_line import parse_flags, run_script

    def run() -> None:
        config = parse_flags(EvaluateConfig, arguments, prog=prog)
        from memory_program.evaluation.evaluation_run import evaluate  # DSPy is slow: not for --help

        evaluate(config, with_oracle=True)

    return run_script(run)


def run_score(arguments: Sequence[str] | None = None, prog: str = "memory-program score") -> int:
    """Score the answers or rankings of other systems, and print the results."""
    from memory_program.configs.score_config import ScoreConfig
    from memory_program.core.command_line import parse_flags, run_script

    def run() -> None:
        config = parse_flags(ScoreConfig, arguments, prog=prog)
        from memory_program.evaluation.foreign_systems import score_foreign_systems  # not for --help

        score_foreign_systems(config)

    return run_script(run)


def run_optimize(arguments: Sequence[str] | None = None, prog: str = "optimize.py") -> int:
    """Search for better prompts, and save the best."""
    from memory_program.configs.optimize_config import OptimizeConfig
    from memory_program.core.command_line import parse_flags, run_script

    def run() -> None:
        config = parse_flags(OptimizeConfig, arguments, prog=prog)
        from memory_program.optimization.optimization_run import optimize  # DSPy is slow: not for --help

        optimize(config)

    return run_script(run)


def run_train(arguments: Sequence[str] | None = None, prog: str = "train.py") -> int:
    """Train models of the program, in the mode that the flags name."""
    from memory_program.core.command_line import parse_flags, parse_mode, run_script
    from memory_program.core.gpus import is_first_process
    from memory_program.rl.backends.backend_choice import choose_backend

    def run() -> None:
        mode = parse_mode(TRAIN_MODES, "train", arguments)
        modes = "\n".join(f"- {name}: {phrase}" for name, (_, phrase) in TRAIN_MODES.items())
        about = f"Modes, each with its own flags ({prog} --mode NAME --help):\n\n{modes}"
        choice = choose_backend(arguments) if mode == "train" else None
        config_type = train_mode_config(mode) if choice is None else choice.config_type
        config = parse_flags(config_type, arguments, about=about, prog=f"{prog} --mode {mode}")
        if choice is not None and choice.reason is not None and is_first_process():
            print(f"backend: {choice.config_type.backend_name()}, since {choice.reason}", flush=True)
        _load(f"memory_program.{TRAIN_MODES[mode][0]}", extra="train")(config)

    return run_script(run)


def run_serve(arguments: Sequence[str] | None = None, prog: str = "memory-program serve") -> int:
    """Serve memory over REST, MCP and an OpenAI-compatible proxy, until the process is told to stop."""
    from memory_program.configs.serve_config import ServeConfig
    from memory_program.core.command_line import parse_flags, run_script

    def run() -> None:
        config = parse_flags(ServeConfig, arguments, prog=prog)
        _load("memory_program.serving.service.serve_command:serve_memory", extra="serve")(config)

    return run_script(run)


def train_mode_config(mode: str, arguments: Sequence[str] | None = None) -> type["Settings"]:
    """Return the config of a mode of ``train.py``; that of a training depends on the backend."""
    from memory_program.configs import sft_config, train_config
    from memory_program.rl.backends.backend_choice import choose_backend

    if mode == "train":
        return choose_backend(arguments).config_type
    return {
        "evaluate": train_config.ReevaluateConfig,
        "trajectories": sft_config.TrajectoriesConfig,
        "synthesize": sft_config.SynthesizeConfig,
        "sft": sft_config.FineTuneConfig,
        "export": sft_config.ExportConfig,
    }[mode]


def _load(place: str, extra: str | None = None) -> Callable[..., Any]:  # Any: each function its own
    """Import what a place (``module:name``) names; ``extra`` is the one that it needs, if any."""
    module, _, name = place.partition(":")
    with name_missing_extra(extra):
        return getattr(import_module(module), name)
