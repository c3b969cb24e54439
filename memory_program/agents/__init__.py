"""The writer and the reader, their prompts and tools, and the systems that they are compared with."""
