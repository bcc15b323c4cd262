"""layout: a traced step and the parallel degrees become one `RankProgram` per distinct rank. Knows no seconds."""
