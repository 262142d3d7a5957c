"""Many tenants on few slots, on virtual time over the real scheduler: figures, a page and a picture."""
