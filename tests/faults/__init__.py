"""Faults of a real store under load: what the users of each adapter notice."""
