"""The commands, one file each, and what `acorn run` needs: the agent that is named, and the file that is saved to."""
