"""Training on an Arbor server (arbor-ai 0.2.17) over HTTP; this package imports neither Arbor nor vLLM."""
