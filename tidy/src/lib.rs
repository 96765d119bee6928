//! Rules that the whole tree keeps, held by this crate's tests: which way arrows between crates point, that modules do not
//! import each other in circles.
//!
//! `allowances/CRATE.toml` holds what a crate still has; it may shrink and never grow.
//! `EXTANT_TIDY=shrink cargo test -p extant-tidy` lowers every allowance to what was found.
#![forbid(unsafe_code)]
