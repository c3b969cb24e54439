"""Training on an Arbor server (arbor-ai 0.2.17), over HTTP; nothing of Arbor or vLLM is imported here."""
