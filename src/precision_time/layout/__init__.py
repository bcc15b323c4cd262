"""layout: a training step and the parallel degrees become a `StepProgram` of every distinct rank. Knows no seconds."""
