"""`serve`."""


def serve() -> None: ...
