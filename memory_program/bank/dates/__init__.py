"""Dates in conversations: find date phrases and resolve them to spans of days."""
