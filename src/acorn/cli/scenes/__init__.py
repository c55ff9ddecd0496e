"""The programs of `acorn demo`: each is shown as it stands here, and run."""
