"""The loop itself: pure, without I/O, clock or chance. It asks, and is told."""
