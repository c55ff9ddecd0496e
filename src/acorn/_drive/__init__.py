"""The drivers: they perform the asks of the machines, in a blocking call or on the event loop."""
