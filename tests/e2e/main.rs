//! The platform end to end on a sandbox of its own.
