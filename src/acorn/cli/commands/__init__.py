"""The functions that implement the commands, with one file for each group of commands."""
