"""Comparisons with other programs: the plain implementation, scikit-bio, ssu, one process and two
(make bench).
"""
