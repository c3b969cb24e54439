"""Settings of each command."""
