"""An EEG model: age and sex from windows of recordings, with pretraining without labels."""
