"""One file for each framework, with programs in the style of its documentation."""
