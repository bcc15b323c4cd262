"""Co-located jobs for real: their file, launching, windows, calibration, the advice, and the run."""
