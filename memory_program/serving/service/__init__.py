"""Memory as a service: turns in, answers out, over REST, MCP and an OpenAI-compatible proxy."""
