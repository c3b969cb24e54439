"""Recipes: run from a checkout, not installed."""
