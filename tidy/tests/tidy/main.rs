//! The tree's rules, tested.

mod arrows;
mod circles;
mod language;
mod modules;
mod tree;
