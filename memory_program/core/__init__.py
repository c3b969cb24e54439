"""Foundations used everywhere: errors, settings, files, journals, run folders."""
