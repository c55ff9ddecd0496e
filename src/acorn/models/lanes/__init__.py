"""Native lanes: the path of a request to a provider without LiteLLM."""
