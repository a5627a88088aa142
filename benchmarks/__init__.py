"""Comparisons with rivals: the plain implementation, scikit-bio, ssu, one process and two (make
bench).
"""
