"""The adapter for every provider without a native lane.

It sends the requests through the LiteLLM library. Code outside this folder does not use the types and the exceptions of
LiteLLM.
"""
