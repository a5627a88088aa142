"""Judging predictions, whatever made them: metrics, intervals, baselines and reports."""
