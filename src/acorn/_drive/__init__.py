"""The drivers: code that performs the asks of the machines, in a blocking call or on the event loop.

An ask is an operation that a machine needs next, such as a model request, a tool call or a hook.
"""
