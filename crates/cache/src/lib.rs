//! Page cache, write-back and dirty control.

pub mod control;
