"""Recipes that are run from a checkout."""
