"""The public interface: functions on data in memory or in files, which the commands call."""
