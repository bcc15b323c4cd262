"""timeline: a timed program becomes intervals on streams. It does not know where the seconds came from."""
