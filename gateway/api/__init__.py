"""The endpoints and protocols that clients speak. Pure: nothing here does IO."""
