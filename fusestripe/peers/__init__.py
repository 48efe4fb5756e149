"""Nodes of one job that hand each other stripes, so that the origin sends each of them once."""
