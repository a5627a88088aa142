"""Programs that show the engine of aam on other systems."""
