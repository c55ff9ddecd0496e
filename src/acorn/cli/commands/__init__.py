"""The functions of the commands. Each file has the commands of one subject."""
