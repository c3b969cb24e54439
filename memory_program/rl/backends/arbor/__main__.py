"""``python -m memory_program.rl.backends.arbor``: start, inspect and stop an Arbor server."""

import sys
from collections.abc import Callable
from pathlib import Path

import tyro

from memory_program.configs.arbor_yaml import ARBOR_YAML, ensure_arbor_yaml, read_arbor_config
from memory_program.core.command_line import run_script
from memory_program.rl.backends.arbor import arbor_server as server


def serve_command(config: Path = ARBOR_YAML, allow_remote: bool = False) -> None:
    """Start the server and wait until it answers; the first start installs its own environment.

    Args:
        config: Host, port, storage and GPUs; arbor.yaml is written if it is missing.
        allow_remote: Listen on an address that other machines reach. Arbor has no authentication.
    """
    ensure_arbor_yaml(config, _say)
    server.ensure_server_running(read_arbor_config(config), _say, allow_remote=allow_remote)


def status_command(config: Path = ARBOR_YAML) -> None:
    """Print the state of the server and its GPUs.

    Args:
        config: Host, port, storage and GPUs.
    """
    _say(server.describe_server(read_arbor_config(config)))


def stop_command(config: Path = ARBOR_YAML) -> None:
    """Stop the server and its jobs; checkpoints are kept.

    Args:
        config: Host, port, storage and GPUs.
    """
    found = read_arbor_config(config)
    is_stopped = server.stop_server(found)
    _say("stopped" if is_stopped else f"no server runs that was started from {str(found.storage)!r}")


def main(arguments: list[str] | None = None, prog: str = "python -m memory_program.rl.backends.arbor") -> int:
    """Run a command and return its exit status."""
    commands: dict[str, Callable[..., None]] = {
        "serve": serve_command,
        "status": status_command,
        "stop": stop_command,
    }
    quiet = (tyro.conf.HelptextFromCommentsOff,)
    return run_script(
        lambda: tyro.extras.subcommand_cli_from_dict(commands, args=arguments, prog=prog, config=quiet)
    )


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
