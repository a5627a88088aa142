"""What the package does, as functions on data in memory or in files: the public interface, and what
commands call.
"""
