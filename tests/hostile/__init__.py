"""What strangers send to walk around a limit, to fill it up or to turn it against its owner."""
