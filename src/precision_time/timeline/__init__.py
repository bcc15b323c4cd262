"""timeline: a timed program becomes intervals on streams. Does not know where the seconds came from."""
