"""Stands in for NVIDIA's library: two idle GPUs, so that Arbor starts on a machine without one."""


class NVMLError(Exception):
    pass


def nvmlInit() -> None:
    pass


def nvmlShutdown() -> None:
    pass


def nvmlDeviceGetCount() -> int:
    return 2


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list:
    return []
