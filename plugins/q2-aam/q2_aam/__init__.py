"""The plugin of QIIME 2, imported by its framework only: its types, its actions, and how options
become parameters.
"""
