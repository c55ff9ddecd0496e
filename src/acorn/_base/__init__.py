"""Code that every layer may use: the logger, interruptible waiting, and callbacks around a fork."""
