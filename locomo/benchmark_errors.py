"""Errors of the benchmark readers."""


class BenchmarkError(Exception):
    """Base of every deliberate error of this package."""


class DatasetError(BenchmarkError, ValueError):
    """A data file is missing, modified, or not in the schema; the message says where."""


class ScoringError(BenchmarkError, ValueError):
    """A score was asked for something that has none."""


class WorldError(BenchmarkError, ValueError):
    """A made-up world cannot be made as asked, or not be written."""
