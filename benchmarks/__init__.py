"""Comparisons with rivals: the plain implementation, scikit-bio, ssu, one process beside two (make
bench).
"""
