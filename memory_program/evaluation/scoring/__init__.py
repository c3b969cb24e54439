"""Scores from records: metrics, error types, recall, signatures."""
