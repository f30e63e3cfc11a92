"""The disk: records, the LMDB store, and the group commit."""
