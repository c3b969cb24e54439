"""The NVIDIA GPUs of this machine, and torchrun's processes on them; torch is slow to import."""

import os
import shutil
import subprocess


def list_gpus() -> list[int]:
    """List the indices of this machine's GPUs, in the driver's order; empty without a GPU."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, "--query-gpu=index", "--format=csv,noheader"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.split() if done.returncode == 0 else []
    return [int(line) for line in lines if line.isdecimal()]


def count_visible_gpus() -> int:
    """Count the GPUs that a program may use: all, or those that CUDA_VISIBLE_DEVICES names."""
    found, named = len(list_gpus()), os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return found
    ids = [part.strip() for part in named.split(",")]
    end = next((place for place, part in enumerate(ids) if part in ("", "-1")), len(ids))
    return min(found, end)  # CUDA ignores what follows an invalid id


def count_processes() -> int:
    """Count the processes that torchrun started for this command; 1 without torchrun."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_local_processes() -> int:
    """Count those of torchrun's processes that run on this machine; 1 without torchrun."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Return True in the first of torchrun's processes, and without torchrun."""
    return os.environ.get("RANK", "0") == "0" or count_processes() == 1
