"""Faults on real servers under load: what each adapter's users see of them."""
