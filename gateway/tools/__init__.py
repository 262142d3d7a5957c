"""The programs `slotgate run`, `slotgate top` and `slotgate bench`."""
