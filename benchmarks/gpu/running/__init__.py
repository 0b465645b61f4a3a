"""What runs the checks of this room: each in a process of its own, with a limit, resumed where it was broken off."""
