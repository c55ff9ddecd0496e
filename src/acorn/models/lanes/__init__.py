"""Native lanes: acorn's implementations of the protocols of OpenAI and Anthropic.

A lane is the path of a request to its provider. acorn reaches a provider without a native lane through LiteLLM.
"""
