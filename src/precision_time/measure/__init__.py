"""Everything that runs real code on a real device: calibration of its kernels, real training steps, `verify`."""
