"""The lane for every provider without a native one, through LiteLLM. Its types and errors do not leave this folder."""
