"""Gives vLLM two modules of this folder instead of its own. Python imports this file when it starts."""

import importlib.abc
import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

_REPLACED = {
    "vllm._C": "vllm_kernels.py",
    "vllm.distributed.device_communicators.pynccl": "vllm_pynccl.py",
}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if name not in _REPLACED:
            return None
        return importlib.util.spec_from_file_location(name, Path(__file__).with_name(_REPLACED[name]))


sys.meta_path.insert(0, _Finder())
