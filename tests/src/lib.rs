//! Whole-system tests live beside this crate in `tidy.rs` and `e2e/`; it exports nothing.
