"""`python -m tests.bench`: what a mount is worth, against bare clients and other mounts, as ratios.

A time taken alone says little on a shared machine: every case measures all its sides in turn, several rounds
in one run, and gives the median of the rounds' ratios.
"""
