"""The functions of the commands, with one file for each subject."""
