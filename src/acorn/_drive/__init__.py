"""The drivers, which perform the operations that a run requests, in a blocking call or on the event loop.

The state machine of a run (`_machine/`) performs nothing itself. It returns asks: objects such as `AskModel`, `AskTool`
and `AskHook`, each of which describes an operation that the run needs next. A driver performs the operation and passes
the result to the state machine.
"""
