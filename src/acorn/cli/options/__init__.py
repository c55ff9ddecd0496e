"""Options of `acorn run`: found among the words, made from the fields of an input, read, and explained."""
