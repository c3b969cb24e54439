"""Gives a real vLLM the ``pynccl`` of this folder: NCCL needs GPUs. Python imports this file at its start."""

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name != "vllm.distributed.device_communicators.pynccl":
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name("pynccl.py"))


sys.meta_path.insert(0, _Finder())
