"""Erasure of a conversation from run folders, databases, reports and MLflow."""
