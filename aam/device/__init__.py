"""The machine: devices, precision, ranks, memory. It knows no microbes."""
