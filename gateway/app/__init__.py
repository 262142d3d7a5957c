"""Composition: builds the gateway from the rooms below, which do not import this one."""
