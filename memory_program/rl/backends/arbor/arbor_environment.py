"""The server's own environment, because Arbor's dependencies conflict with those of this package."""

import hashlib
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

from memory_program.core.errors import ConfigError, ModelError

DEPENDENCY_GROUP = "arbor-server"
"""The dependency group of pyproject.toml."""

_MARK = "memory-program.installed"
_PYTHONS = ("python3.12", "python3.11")  # vllm 0.10.0 has no wheels for later ones
_ACCELERATE = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  bf16:
    enabled: auto
  fp16:
    enabled: auto
  deepspeed_multinode_launcher: standard
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: 'no'
num_machines: 1
rdzv_backend: static
same_network: true
use_cpu: false
"""
"""The configuration that Arbor's trainer needs, and that its wheel lacks."""


def server_requirements() -> list[str]:
    """Read the server's pinned requirements from pyproject.toml; raise ``ConfigError`` if there are none."""
    path = Path(__file__).parents[4] / "pyproject.toml"
    try:
        groups = tomllib.loads(path.read_text(encoding="utf-8"))["dependency-groups"]
        return [str(requirement) for requirement in groups[DEPENDENCY_GROUP]]
    except (OSError, KeyError) as error:
        raise ConfigError(
            f"{str(path)!r} has no dependency group {DEPENDENCY_GROUP!r}: the server is made from a "
            "checkout of memory-program (pip install -e .)"
        ) from error


def ensure_server_environment(
    folder: Path, say: Callable[[str], None], wanted: Sequence[str] | None = None
) -> Path:
    """Create or update the server's environment, and return its Python; it takes 8 GB.

    Args:
        folder: the folder of the environment.
        say: called with progress.
        wanted: the requirements; by default those of the dependency group.

    Raises:
        ConfigError: no supported Python is installed.
        ModelError: a requirement cannot be installed.
    """
    wanted = server_requirements() if wanted is None else wanted
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    python, mark = folder / "bin" / "python", folder / _MARK
    if not mark.is_file() or mark.read_text(encoding="utf-8") != digest:
        say(f"installing {wanted[0]} with all that it needs into {folder}: this takes minutes, and once")
        mark.unlink(missing_ok=True)
        found = next((path for name in _PYTHONS if (path := shutil.which(name)) is not None), None)
        base = sys.executable if sys.version_info[:2] in ((3, 11), (3, 12)) else found
        if base is None:
            raise ConfigError("Arbor's server needs Python 3.11 or 3.12 beside this one: install python3.12")
        _run([base, "-m", "venv", str(folder)])
        _run([str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"])
        _run([str(python), "-m", "pip", "install", "--quiet", *wanted])
        mark.write_text(digest, encoding="utf-8")
    write_accelerate_config(python)
    return python


def write_accelerate_config(python: Path) -> Path:
    """Write the trainer's accelerate configuration if missing; raise ``ModelError`` without Arbor."""
    command = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    packages = Path(_run(command).strip())
    if not (packages / "arbor").is_dir():
        raise ModelError(f"{str(python)!r} has no Arbor: remove its folder, and it is made anew")
    path = packages / "configs" / "deepspeed_config.yaml"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_text(_ACCELERATE, encoding="utf-8")
    return path


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise ModelError(f"{' '.join(command)} failed: {' '.join(last)}")
    return done.stdout
