//! Rules for the whole tree, checked by this crate's tests: which crates may depend on which, that
//! modules do not import each other in circles, and that the files of a crate have different names.
//!
//! `allowances/CRATE.toml` lists the violations that a crate still has; it may shrink but never
//! grow. `EXTANT_TIDY=shrink cargo test -p extant-tidy` reduces every allowance to what the tests
//! find.
#![forbid(unsafe_code)]
