"""Long-term conversational memory as a DSPy program."""

__version__ = "0.1.0"
