"""Any provider, through LiteLLM: all that knows it. None of its types or errors leave here."""
