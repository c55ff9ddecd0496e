"""One file per framework, with the tasks as its users would write them."""
