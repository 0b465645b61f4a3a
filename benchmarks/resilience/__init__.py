"""What a real server does when processes die or hang, when traffic exceeds its capacity, and over a long time."""
