"""Stands in for Weights & Biases, whose ``run`` Arbor asks after."""

run = None
