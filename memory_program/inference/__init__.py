"""A language model in this process: engine, batching, KV cache, sampling, loading."""
