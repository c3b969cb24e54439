"""Servers: rewards over HTTP for other trainers."""
