"""What is seen of a run: a tree of what happened, the drawing of it, and the views that follow a run."""
