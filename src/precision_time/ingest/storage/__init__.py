"""Real storage: pictures, a server of limited rate, a cache of files, readers, and the probes that measure them."""
