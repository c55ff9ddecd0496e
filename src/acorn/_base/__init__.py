"""What every layer may use: the logger, waiting that Ctrl-C can end, and what happens when a process forks."""
