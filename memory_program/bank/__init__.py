"""Long-term memory: banks of memories as logs of operations, their storage, and their retrieval."""
