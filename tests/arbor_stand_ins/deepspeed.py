"""Stands in for DeepSpeed, which Arbor imports and, on a CPU, never uses."""
