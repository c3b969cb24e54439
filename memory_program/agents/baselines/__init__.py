"""Systems without a memory writer: full context, no memory, retrieval, extractive."""
