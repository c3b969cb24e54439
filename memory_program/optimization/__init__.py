"""Prompts that improve themselves: an optimiser proposes, and what counts is measured here."""
