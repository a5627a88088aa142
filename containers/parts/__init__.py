"""What containers/build and containers/run are made of; standard library only, Python 3.11 or newer."""
