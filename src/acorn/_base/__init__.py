"""Code that every layer may use: logger, clock, interruptible waiting, threads, and callbacks around a fork."""
