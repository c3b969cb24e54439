"""Servers: memory as a service, and rewards over HTTP for other trainers."""
