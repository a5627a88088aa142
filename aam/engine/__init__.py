"""Training for any torch model: tasks, the trainer, checkpoints, logs and exact resume; knows no
microbes.
"""
