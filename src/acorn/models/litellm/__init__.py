"""The lane through LiteLLM, for every provider without a native lane.

No code outside this folder uses the types and the exceptions of LiteLLM.
"""
