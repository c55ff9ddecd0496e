"""Native lanes: acorn's own implementations of the protocols of OpenAI and Anthropic.

A lane is the path of a request to its provider. A provider without a native lane is reached through LiteLLM.
"""
