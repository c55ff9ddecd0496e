"""The drivers: code that performs the asks of the machines, in a blocking call or on the event loop."""
